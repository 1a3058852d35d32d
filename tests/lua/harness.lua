-- A fake of what slurmctld gives to job_submit.lua: the `slurm` table and a job_desc that behaves as the C code's.
-- Loaded into a scenario's environment by the tests; adds only the global `harness` (and `slurm`, as slurmctld does).

local NO_VAL, NICE_OFFSET = 4294967294, 2147483648

slurm = { SUCCESS = 0, ERROR = -1, ESLURM_INVALID_PARTITION_NAME = 2000, NO_VAL = NO_VAL, NICE_OFFSET = NICE_OFFSET }
local lines = {}
function slurm.log_info(...) lines[#lines + 1] = "info: " .. string.format(...) end
function slurm.log_error(...) lines[#lines + 1] = "error: " .. string.format(...) end
function slurm.log_user(...) lines[#lines + 1] = "user: " .. string.format(...) end

local STRINGS = { prefer = true, features = true, comment = true, name = true, partition = true, admin_comment = true }

-- What a `uint32_t` holds after an assignment from a double, where C defines it.
local function unsigned(number)
  assert(number == number and number >= 0 and number <= 4294967295, "undefined conversion to uint32_t")
  return number
end

local function a_job(fields)
  local stored = {
    user_id = 1000, site_factor = NO_VAL, priority = NO_VAL, nice = NO_VAL, time_limit = NO_VAL, min_nodes = NO_VAL,
    max_nodes = NO_VAL, num_tasks = NO_VAL, min_cpus = NO_VAL, cpus_per_task = 65534, sockets_per_node = 65534,
    het_job_offset = NO_VAL, begin_time = 0, cron_job = false,
    name = "train", script = "#!/bin/sh\nSECRET-SCRIPT", environment = { TOKEN = "SECRET-ENVIRONMENT" },
  }
  for name, value in pairs(fields or {}) do stored[name] = value end
  local job = setmetatable({}, {
    __index = function(_, name)
      local value = stored[name]
      if name == "site_factor" and value ~= NO_VAL then return value - NICE_OFFSET end
      return value
    end,
    __newindex = function(_, name, value)
      if name == "site_factor" then
        local raw = unsigned(value)
        stored.site_factor = raw == NO_VAL and raw or (raw + NICE_OFFSET) % 4294967296
      elseif STRINGS[name] then
        assert(type(value) == "string", "string expected, got " .. type(value))
        stored[name] = value ~= "" and value or nil
      else
        stored[name] = value
      end
    end,
  })
  return job, stored
end

local function dump(stored)
  local parts = {}
  for name, value in pairs(stored) do
    local text = type(value) == "number" and string.format("%.0f", value) or tostring(value)
    if type(value) ~= "table" then parts[#parts + 1] = name .. "=" .. text end
  end
  table.sort(parts)
  return (table.concat(parts, ";"):gsub("[%c\127-\255]", function(c) return string.format("\\%d", c:byte()) end))
end

local function milliseconds(work, ...)
  local gettime = require("socket.core").gettime
  local start = gettime()
  work(...)
  return (gettime() - start) * 1000
end

-- The names of globals that exist now and did not when the harness was loaded.
local before = {}
local function new_globals()
  local found = {}
  for name in pairs(_G) do
    if not before[name] then found[#found + 1] = name end
  end
  table.sort(found)
  return table.concat(found, ",")
end

harness = {
  a_job = a_job, dump = dump, lines = lines, milliseconds = milliseconds, new_globals = new_globals,
  read_file = function(path)
    local file = assert(io.open(path, "rb"))
    local content = file:read("*a")
    file:close()
    return content
  end,
}
for name in pairs(_G) do before[name] = true end
