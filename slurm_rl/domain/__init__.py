"""Plain data: jobs, nodes, clusters, snapshots and plans."""
