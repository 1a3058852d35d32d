-- slurm-rl: the JSON of the shim. Reads one object with bounded depth and effort, writes flat objects.
-- Lua 5.1 to 5.4, no dependencies, no globals. Raises a plain string on anything it does not read.

local MAX_DEPTH = 8
local MAX_PIECES = 1000 -- values and escapes in a reply: bounds the time its parsing takes

local ESCAPES = { ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

-- Non-ASCII becomes "?": no field we apply may hold it, so it only has to be refused.
local function unescape_unicode(hex)
  local code = tonumber(hex, 16)
  return code < 128 and string.char(code) or "?"
end

local function decode(text)
  local pos, pieces = 1, 0
  local value

  local function fail() error("reply is not the JSON we read, near byte " .. pos, 0) end

  local function count()
    pieces = pieces + 1
    if pieces > MAX_PIECES then fail() end
  end

  local function skip_space() pos = text:find("[^ \t\r\n]", pos) or #text + 1 end

  local function take(character)
    skip_space()
    if text:sub(pos, pos) ~= character then return false end
    pos = pos + 1
    return true
  end

  local function escape()
    count()
    local hex = text:match("^u(%x%x%x%x)", pos)
    if hex then
      pos = pos + 5
      return unescape_unicode(hex)
    end
    local plain = ESCAPES[text:sub(pos, pos)]
    if not plain then fail() end
    pos = pos + 1
    return plain
  end

  local function string_value()
    local parts = {}
    while true do
      local stop = text:find('["\\%z\1-\31]', pos)
      if not stop then fail() end
      parts[#parts + 1] = text:sub(pos, stop - 1)
      local character = text:sub(stop, stop)
      pos = stop + 1
      if character == '"' then return table.concat(parts) end
      if character ~= "\\" then fail() end -- a raw control character
      parts[#parts + 1] = escape()
    end
  end

  local function number_value()
    local token = text:match("^-?%d+%.?%d*[eE]?[+-]?%d*", pos)
    local number = token and tonumber(token)
    if not number then fail() end
    pos = pos + #token
    return number
  end

  local function object_value(depth)
    local object = {}
    if take("}") then return object end
    repeat
      if not take('"') then fail() end
      local key = string_value()
      if not take(":") then fail() end
      object[key] = value(depth)
    until not take(",")
    if not take("}") then fail() end
    return object
  end

  local function array_value(depth)
    local array = {}
    if take("]") then return array end
    repeat array[#array + 1] = value(depth) until not take(",")
    if not take("]") then fail() end
    return array
  end

  function value(depth)
    count()
    if depth >= MAX_DEPTH then fail() end
    if take("{") then return object_value(depth + 1) end
    if take("[") then return array_value(depth + 1) end
    if take('"') then return string_value() end
    local word = text:match("^%l+", pos)
    if not word then return number_value() end
    if word ~= "null" and word ~= "true" and word ~= "false" then fail() end
    pos = pos + #word
    if word ~= "null" then return word == "true" end -- null is nil: as if the field were absent
  end

  if not take("{") then fail() end
  local object = object_value(1)
  skip_space()
  if pos <= #text then fail() end
  return object
end

-- Bytes beyond ASCII go out as \u00XX: always valid JSON, whatever a user put into a job's name.
local function escape_byte(character) return string.format("\\u%04x", character:byte()) end

local function encode_string(text) return '"' .. text:gsub('[%c"\\\127-\255]', escape_byte) .. '"' end

local function encode(fields)
  local parts = {}
  for i = 1, #fields do
    local name, content = fields[i][1], fields[i][2]
    local encoded = type(content) == "number" and string.format("%.0f", content) or encode_string(content)
    parts[i] = '"' .. name .. '":' .. encoded
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

return { decode = decode, encode = encode }
