-- slurm-rl: job_submit shim
-- Runs the site's own script (job_submit.site.lua, if there is one) exactly as Slurm would, then asks the slurm-rl
-- service for advice. Nothing that goes wrong in the second step can change or refuse a job.
-- Installed by `slurm-rl install-plugin`; settings are in slurm_rl_settings.lua. Do not edit: edit the site's script,
-- then `touch job_submit.lua`, because slurmctld looks only at this file's modification time.

local HERE = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local SITE_SCRIPT = HERE .. "job_submit.site.lua"
local NO_SUCH_FILE = 2

-- The site's script sees the real globals, in both directions; only its two entry points are kept apart from ours.
local function site_environment()
  return setmetatable({ slurm_job_submit = false, slurm_job_modify = false }, { __index = _G, __newindex = _G })
end

local function load_into(path, environment)
  local chunk, why
  if setfenv then -- Lua 5.1
    chunk, why = loadfile(path)
    if chunk then setfenv(chunk, environment) end
  else
    chunk, why = loadfile(path, "bt", environment)
  end
  if not chunk then error(why, 0) end
  return chunk
end

-- An entry point the site defined in its script, or through dofile, which writes to the real globals.
local function entry_point(environment, name)
  local found = environment[name] or rawget(_G, name)
  if type(found) ~= "function" then error(SITE_SCRIPT .. ": no function " .. name, 0) end
  environment[name] = found
  return found
end

-- Errors here are left to slurmctld, which then does with the site's script what it always does with a broken one.
local function load_site_script()
  local file, why, code = io.open(SITE_SCRIPT, "r")
  if not file then
    if code == NO_SUCH_FILE then return nil, slurm.SUCCESS end
    error(why, 0)
  end
  file:close()
  local environment = site_environment()
  local result = load_into(SITE_SCRIPT, environment)()
  entry_point(environment, "slurm_job_submit")
  entry_point(environment, "slurm_job_modify")
  return environment, result
end

local function load_advisor()
  local function part(name, ...) return assert(loadfile(HERE .. name))(...) end
  local client = part("slurm_rl_client.lua", part("slurm_rl_json.lua"))
  return client.new(part("slurm_rl_settings.lua"), slurm)
end

local site, site_result = load_site_script()
local loaded, advise = pcall(load_advisor)
if not loaded then
  pcall(slurm.log_error, "%s", "slurm-rl: not active, jobs go on without it: " .. tostring(advise))
  advise = nil
end

-- rawset, because a site may forbid new globals.
rawset(_G, "slurm_job_submit", function(job_desc, ...)
  local code = slurm.SUCCESS
  if site then
    code = site.slurm_job_submit(job_desc, ...)
    if (tonumber(code) or 0) ~= 0 then return code end -- the site refuses the job
  end
  if advise then pcall(advise, job_desc) end
  return code
end)

-- Runs under slurmctld's write locks: the site's function itself, or nothing.
rawset(_G, "slurm_job_modify", site and site.slurm_job_modify or function() return slurm.SUCCESS end)

return site_result
