-- slurm-rl: asks the service for advice on one job, within a hard deadline, and writes what it may.
-- Lua 5.1 to 5.4, luasocket. Defines no globals. Everything here may raise: job_submit.lua catches.
-- The chunk takes the JSON module (slurm_rl_json.lua) as its argument.

local json = ...

local MAX_REPLY = 64 * 1024
local MAX_REQUEST = 15 * 1024 -- the service refuses more than 16 KiB, headers included
local MAX_MESSAGE = 300 -- bytes of a line for the user
local MAX_STRING = 1024 -- longer request fields are left out
local CHUNK = 4096
local RESERVED = ".admin" -- beside the service's public socket, for root and SlurmUser alone
local LOG_EVERY_S = 300

local NO_VAL = 4294967294
local NO_VAL16 = 65534
local NICE_OFFSET = 2147483648
local EXACT_INTEGERS = 2 ^ 53

-- The job ------------------------------------------------------------------------------------------------------------

-- A number the user gave, or nil: Slurm marks the others with NO_VAL and INFINITE of the field's width.
local function given(number, no_val)
  if type(number) == "number" and number >= 0 and number < (no_val or NO_VAL) then return math.floor(number) end
end

local function text_of(content)
  if type(content) == "string" and content ~= "" and #content <= MAX_STRING then return content end
end

-- GPUs in a list such as "gres:gpu:a100:2,license:x" (22.05), "gres/gpu:2" or "gres/gpu:a100=2" (newer), and their
-- type if it is one and the same.
local function count_gpus(tres)
  local total, kind, mixed = 0, nil, false
  for item in (text_of(tres) or ""):gmatch("[^,]+") do
    local rest = item:match("^gres[:/]gpu(.*)$") or item:match("^gpu(.*)$")
    local this_kind, count
    if rest then
      this_kind, count = rest:match("^:(%a[^:=]*)[:=](%d+)$")
      if not count then count = rest:match("^[:=](%d+)$") end
      if not count then
        this_kind = rest:match("^:(%a[^:=]*)$")
        count = (this_kind or rest == "") and 1
      end
    end
    if count then
      mixed = mixed or (total > 0 and this_kind ~= kind)
      total, kind = total + tonumber(count), this_kind
    end
  end
  return total, not mixed and kind or nil
end

-- The job's GPUs in all; nodes, tasks and sockets the user left open count as one.
local function all_gpus(job)
  local nodes = math.max(given(job.min_nodes) or 1, 1)
  local sockets = math.max(given(job.sockets_per_node, NO_VAL16) or 1, 1)
  local tasks = math.max(given(job.num_tasks) or 1, 1)
  local sources = {
    { job.tres_per_job, 1 },
    { job.tres_per_node, nodes },
    { job.tres_per_task, tasks },
    { job.tres_per_socket, sockets * nodes },
  }
  for i = 1, 4 do
    local count, kind = count_gpus(sources[i][1])
    if count > 0 then return given(count * sources[i][2]), kind end
  end
end

local function is_named(content) return type(content) == "string" and content ~= "" end

-- Jobs that ticks leave alone get nothing at submission either: parts of heterogeneous jobs, cron jobs, jobs in a
-- reservation, held ones (priority 0) and those with a priority set by hand, and those that cannot start yet.
local function is_left_alone(job, now)
  local begin = given(job.begin_time, EXACT_INTEGERS) or 0 -- 0: the user gave none
  return given(job.het_job_offset) ~= nil or given(job.priority) ~= nil or job.cron_job == true
    or is_named(job.dependency) or is_named(job.reservation) or (begin > 0 and begin > now)
end

-- A comment is the user's own; the service needs it only where it speaks to us.
local function comment_for_us(comment)
  if type(comment) == "string" and comment:find("slurm-rl:", 1, true) then return text_of(comment) end
end

-- What the service may know, in its order on the wire. Never the script, never the environment.
local function read_job(job, with_user_name)
  local fields = {}
  local function add(name, content)
    if content ~= nil then fields[#fields + 1] = { name, content } end
  end
  local gpus, gpu_type = all_gpus(job)
  local nice = given(job.nice)
  add("user_id", given(job.user_id))
  if with_user_name then add("user_name", text_of(job.user_name)) end
  add("account", text_of(job.account))
  if not is_named(job.account) then add("default_account", text_of(job.default_account)) end
  add("partition", text_of(job.partition))
  add("qos", text_of(job.qos))
  if not is_named(job.qos) then add("default_qos", text_of(job.default_qos)) end
  add("time_limit_min", given(job.time_limit))
  add("min_nodes", given(job.min_nodes))
  add("max_nodes", given(job.max_nodes))
  add("num_tasks", given(job.num_tasks))
  add("cpus_per_task", given(job.cpus_per_task, NO_VAL16))
  add("min_cpus", given(job.min_cpus))
  add("mem_per_node_mb", given(job.min_mem_per_node, EXACT_INTEGERS))
  add("mem_per_cpu_mb", given(job.min_mem_per_cpu, EXACT_INTEGERS))
  add("gpus", gpus)
  add("gpu_type", gpu_type)
  add("tres_per_job", text_of(job.tres_per_job))
  add("tres_per_node", text_of(job.tres_per_node))
  add("tres_per_task", text_of(job.tres_per_task))
  add("tres_per_socket", text_of(job.tres_per_socket))
  add("features", text_of(job.features))
  add("prefer", text_of(job.prefer))
  add("array", text_of(job.array_inx))
  add("name", text_of(job.name))
  add("nice", nice and nice - NICE_OFFSET)
  add("comment", comment_for_us(job.comment))
  return fields
end

-- The advice ---------------------------------------------------------------------------------------------------------

-- A feature expression Slurm takes: a malformed one, or a name no node has, would make it refuse the job.
-- One level of brackets, as in "(a|b)&c*2"; every name is known, and followed by an operator or the end.
local function is_feature_expression(content, known)
  if type(content) ~= "string" or #content > 256 then return false end
  if not content:find("^[A-Za-z0-9_.&|()*-]+$") then return false end
  local flat = content:gsub("%(([^()]+)%)", function(inner) return is_feature_expression(inner, known) and "#" or "(" end)
  if flat:find("[()]") or flat:find("^[&|]") or flat:find("[&|]$") or flat:find("[&|][&|]") then return false end
  for name in flat:gmatch("[^&|]+") do -- "#" stands for a bracketed part
    local counted = name:match("^(.+)%*[1-9]%d?%d?%d?$")
    if name ~= "#" and not known[counted or name] then return false end
  end
  return true
end

-- -2 is left out: job_submit/lua reads it as NO_VAL.
local function is_site_factor(content, limit)
  return type(content) == "number" and content >= -limit and content <= limit and content == math.floor(content)
    and content ~= -2
end

-- What may be written, as {field, new, old}: never over something the user or the site's script chose.
local function choose(advice, job, limit, known_features)
  local writes = {}
  local fields = { "prefer", "features" }
  for i = 1, 2 do
    local field = fields[i]
    local old = job[field] or ""
    if old == "" and is_feature_expression(advice[field], known_features) then
      writes[#writes + 1] = { field, advice[field], old }
    end
  end
  local factor = advice.site_factor
  local old = job.site_factor or NO_VAL
  if old == NO_VAL and is_site_factor(factor, limit) then
    -- Slurm stores the number as unsigned without looking; a negative one must arrive already wrapped,
    -- because what C makes of a negative double differs between processors.
    writes[#writes + 1] = { "site_factor", factor < 0 and factor + 4294967296 or factor + 0, old }
  end
  return writes
end

local function set(job, field, content) job[field] = content end

local function apply(job, writes)
  for i = 1, #writes do set(job, writes[i][1], writes[i][2]) end
end

local function take_back(job, writes)
  for i = 1, #writes do pcall(set, job, writes[i][1], writes[i][3]) end
end

-- A line for the user, as sbatch prints it: plain text alone, since it goes to a terminal.
local function message_in(advice)
  local text = advice.message
  if type(text) == "string" and #text <= MAX_MESSAGE and text:find("^[\32-\126]+$") then return text end
end

-- HTTP ---------------------------------------------------------------------------------------------------------------

local function content_length(head)
  local length
  for digits in head:gmatch("\ncontent%-length:[ \t]*(%d+)[ \t]*\r") do
    if length and length ~= digits then error("reply has two lengths", 0) end
    length = digits
  end
  return length and tonumber(length)
end

-- Status and body of a whole reply, or nil while more is to come.
local function parse_http(raw, closed)
  if #raw > MAX_REPLY then error("reply is too long", 0) end
  local head_end, body_start = raw:find("\r\n\r\n", 1, true)
  if not head_end then
    if closed then error("reply was cut short", 0) end
    return nil
  end
  local head = raw:sub(1, head_end + 1):lower()
  local status = tonumber(head:match("^http/1%.[01] (%d%d%d)[ \r]") or error("reply is not HTTP", 0))
  if head:find("\ntransfer-encoding:", 1, true) then error("reply is chunked", 0) end
  local length = content_length(head)
  if length and length > MAX_REPLY then error("reply is too long", 0) end
  local have = #raw - body_start
  if length and have >= length then return status, raw:sub(body_start + 1, body_start + length) end
  if not closed then return nil end
  if length then error("reply was cut short", 0) end
  return status, raw:sub(body_start + 1)
end

local function seconds_left(clock)
  local spent = clock.gettime() - clock.started
  -- Less than nothing means that somebody set the clock back.
  if spent < 0 or spent >= clock.seconds then error("deadline passed", 0) end
  return clock.seconds - spent
end

local function receive(sock, clock)
  local raw = ""
  while true do
    -- Wait for one byte, then take what is there: luasocket alone would wait for the whole chunk.
    sock:settimeout(seconds_left(clock))
    local first, why = sock:receive(1)
    if not first and why ~= "closed" then error(why == "timeout" and "deadline passed" or why, 0) end
    if first then
      sock:settimeout(0)
      local rest, _, partial = sock:receive(CHUNK)
      raw = raw .. first .. (rest or partial or "")
    end
    local status, body = parse_http(raw, not first)
    if status then return status, body end
  end
end

-- A connected socket. First the reserved one, which users cannot reach and so cannot flood; a service of another
-- release has none, and where the file system has no ACLs it may be closed to SlurmUser.
local function connect(new_socket, path, clock, opened)
  local why
  for _, at in ipairs({ path .. RESERVED, path }) do
    local sock = new_socket()
    opened[#opened + 1] = sock
    sock:settimeout(seconds_left(clock))
    local connected
    connected, why = sock:connect(at)
    if connected then return sock end
  end
  error(why, 0)
end

local function exchange(new_socket, path, request, clock, opened)
  local sock = connect(new_socket, path, clock, opened)
  sock:settimeout(seconds_left(clock))
  local sent, problem = sock:send(request)
  if sent ~= #request then error(problem or "request was cut short", 0) end
  return receive(sock, clock)
end

local function http_request(body)
  return "POST /v1/submit HTTP/1.1\r\nHost: slurm-rl\r\nContent-Type: application/json\r\nConnection: close\r\n"
    .. "Content-Length: " .. #body .. "\r\n\r\n" .. body
end

-- The advice in a reply. A refusal (4xx) is an answer of a healthy service, without advice: otherwise one user's odd
-- job could open the breaker for everybody.
local function advice_in(status, body)
  if status == 200 then return json.decode(body) end
  if status >= 400 and status < 500 then return {} end
  error("the service answered with status " .. status, 0)
end

-- The breaker --------------------------------------------------------------------------------------------------------

local function new_breaker(settings, log)
  local breaker = { failures = 0 }

  -- After its pause the breaker lets one request through; a clock set back ends the pause too.
  function breaker.is_open(now)
    local since = breaker.since
    return since ~= nil and now >= since and now - since < settings.breaker_seconds
  end

  function breaker.succeeded()
    if breaker.told then pcall(log, "%s", "slurm-rl: the service answers again") end
    breaker.failures, breaker.since, breaker.told = 0, nil, false
  end

  function breaker.failed(why, now)
    breaker.failures = breaker.failures + 1
    if breaker.failures < settings.breaker_failures then return end
    breaker.since = now
    if breaker.told_at and now >= breaker.told_at and now - breaker.told_at < LOG_EVERY_S then return end
    breaker.told, breaker.told_at = true, now
    pcall(log, "%s", string.format("slurm-rl: no advice from %s (%s); jobs go on without it, next try in %.0f s",
      settings.socket, tostring(why), settings.breaker_seconds))
  end

  return breaker
end

-- Settings -----------------------------------------------------------------------------------------------------------

local RANGES = {
  deadline_ms = { 1, 1000 },
  breaker_failures = { 1, 1000 },
  breaker_seconds = { 1, 86400 },
  site_factor_limit = { 0, 1000000000 },
}

local function check(settings)
  if type(settings) ~= "table" or type(settings.socket) ~= "string" then
    error("slurm_rl_settings.lua: socket must be a path", 0)
  end
  for name, range in pairs(RANGES) do
    local content = settings[name]
    if type(content) ~= "number" or not (content >= range[1] and content <= range[2]) then
      error(string.format("slurm_rl_settings.lua: %s must be from %d to %d", name, range[1], range[2]), 0)
    end
  end
end

local function set_of(names)
  local set = {}
  for i = 1, #names do set[names[i]] = true end
  return set
end

-- Returns advise(job_desc), which asks and writes; it holds the breaker's state.
local function new(settings, slurm)
  check(settings)
  local gettime = require("socket.core").gettime -- the core also makes the process ignore SIGPIPE
  local unix = require("socket.unix")
  local stream = type(unix) == "table" and unix.stream or unix -- a function before luasocket 3.0
  local breaker = new_breaker(settings, slurm.log_info)
  local known_features = set_of(settings.features or {})

  local function ask(request, clock)
    local opened = {}
    local ok, status, body = pcall(exchange, stream, settings.socket, request, clock, opened)
    for i = 1, #opened do pcall(opened[i].close, opened[i]) end
    if not ok then error(status, 0) end
    return advice_in(status, body)
  end

  return function(job)
    local clock = { started = gettime(), seconds = settings.deadline_ms / 1000, gettime = gettime }
    if breaker.is_open(clock.started) or is_left_alone(job, clock.started) then return end
    local body = json.encode(read_job(job, settings.send_user_name))
    if #body > MAX_REQUEST then return end
    local ok, advice = pcall(ask, http_request(body), clock)
    if not ok then return breaker.failed(advice, clock.started) end
    breaker.succeeded()
    local writes = choose(advice, job, settings.site_factor_limit, known_features)
    local message = message_in(advice)
    if not pcall(apply, job, writes) then take_back(job, writes) end
    if message and slurm.log_user then pcall(slurm.log_user, "%s", message) end
  end
end

-- The parts beside `new` are for the tests.
return {
  new = new, advice_in = advice_in, choose = choose, message_in = message_in, parse_http = parse_http, read_job = read_job,
}
