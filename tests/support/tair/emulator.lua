-- An emulator of TairString, for tests; not the module.  The emulator puts this text before each script that a client
-- sends, so that the script runs unchanged on a Redis without the module, with that server's time, expiry and memory.
--
-- It has EXSET, EXGET and EXCAS with the options that caslock uses, and their replies as the module gives them.  What
-- it does not have is an error that names it.  A TairString is a hash of two fields, so TYPE says "hash".  Versions
-- above 2^53 are not emulated, because Lua counts in doubles.
local redis = setmetatable({}, { __index = redis })
do
  local native = getmetatable(redis).__index
  local VALUE, VERSION = 'emulated value', 'emulated version'
  local WRONGTYPE = 'WRONGTYPE Operation against a key holding the wrong kind of value'
  local SYNTAX, NO_INTEGER = 'ERR syntax error', 'ERR version should be integer'

  local function refuse(text) error({ err = text }) end

  local function read(key)  -- another type under the key is Redis' own WRONGTYPE
    local found = native.call('HMGET', key, VALUE, VERSION)
    if found[2] then return found[1], found[2] end
    if native.call('EXISTS', key) == 1 then refuse(WRONGTYPE) end  -- a hash, but not one of ours
  end

  local function demand_memory(key)  -- the module's writes are refused by a full server before they look at anything
    if native.call('TYPE', key).ok == 'hash' then
      native.call('HSETNX', key, native.call('HRANDFIELD', key), '')  -- changes nothing, as the other does
    else
      native.call('BITFIELD', key)
    end
  end

  local function natural(text, otherwise)
    if not string.match(text or '', '^%d+$') then refuse(otherwise) end
    if tonumber(text) > 2 ^ 53 then refuse('ERR the TairString emulator has no version above 2^53') end
    return text
  end

  local function options(given, known)
    local found, i = {}, 1
    while i <= #given do
      local name = string.upper(given[i])
      if not known[name] then refuse('ERR syntax error: the TairString emulator has no option ' .. name) end
      if found[name] then refuse(SYNTAX) end
      found[name] = given[i + 1] or refuse(SYNTAX)
      i = i + 2
    end
    if found.PX and (not string.match(found.PX, '^%d+$') or tonumber(found.PX) == 0) then refuse(SYNTAX) end
    return found
  end

  local function write(key, value, version, px)
    native.call('HSET', key, VALUE, value, VERSION, version)
    if px then native.call('PEXPIRE', key, px) else native.call('PERSIST', key) end
  end

  local emulated = {}

  function emulated.EXSET(key, value, ...)
    if not value then refuse("ERR wrong number of arguments for 'exset' command") end
    demand_memory(key)
    local given = options({ ... }, { PX = true, ABS = true })
    if given.ABS then natural(given.ABS, SYNTAX) end
    local _, version = read(key)
    write(key, value, given.ABS or string.format('%.0f', (version or 0) + 1), given.PX)
    return { ok = 'OK' }
  end

  function emulated.EXGET(key, ...)
    if not key then refuse("ERR wrong number of arguments for 'exget' command") end
    options({ ... }, {})
    local value, version = read(key)
    if not value then return false end
    return { value, tonumber(version) }
  end

  function emulated.EXCAS(key, value, expected, ...)
    if not expected then refuse("ERR wrong number of arguments for 'excas' command") end
    demand_memory(key)
    if EXCAS_WITHOUT_PX and ... then refuse(SYNTAX) end
    local given = options({ ... }, { PX = true })
    if not string.match(expected, '^-?%d+$') then refuse(NO_INTEGER) end
    natural(expected, SYNTAX)
    local there, version = read(key)
    if not there then return -1 end
    if version ~= expected then return { { ok = 'CAS_FAILED' }, there, tonumber(version) } end
    version = string.format('%.0f', version + 1)
    write(key, value, version, given.PX)
    return { { ok = 'OK' }, { ok = '' }, tonumber(version) }
  end

  function redis.call(name, ...)
    local emulation = emulated[string.upper(name)]
    if emulation then return emulation(...) end
    return native.call(name, ...)
  end

  function redis.pcall(...)
    local done, reply = pcall(redis.call, ...)
    if not done and type(reply) ~= 'table' then reply = { err = tostring(reply) } end
    return reply
  end
end
