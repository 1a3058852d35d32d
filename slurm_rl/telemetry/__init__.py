"""What GPUs really do: the node agent samples them, attributes them to jobs, and keeps a record of each job."""
