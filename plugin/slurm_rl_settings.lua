-- slurm-rl: settings of the job_submit shim. After an edit: touch job_submit.lua
return {
  -- The service's unix socket. Only root or the service's user may write to its directory.
  socket = "/run/slurm-rl/slurm-rl.sock",
  -- The longest a submission may wait for advice, in milliseconds: connect, send and receive together.
  deadline_ms = 30,
  -- After so many failures in a row the service is left alone for so many seconds.
  breaker_failures = 3,
  breaker_seconds = 30,
  -- Advice beyond plus or minus this SiteFactor is ignored.
  site_factor_limit = 1000000,
  -- The node features that advice may name. Slurm refuses a job that names one no node has, so advice with others is
  -- ignored. install-plugin fills the list from slurm.conf.
  features = {},
  -- The user's name costs a name service lookup on Slurm 22.05, which the deadline cannot bound.
  send_user_name = false,
}
