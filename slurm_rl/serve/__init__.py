"""The service: answers the job_submit shim, users and admins over a unix socket."""
