-- Write the key if the version under it is the expected one.
-- KEYS: the key.  ARGV: the expected version ('0': nothing is there), the ttl in ms, the value.
-- Returns the new version, or if nothing was written, what is under the key: nil, or its value and its version.
-- It checks before it writes, and writes once: an error means that nothing has changed.
local key, expected, value = KEYS[1], ARGV[1], ARGV[3]
local there = redis.call('EXGET', key)
local gone = there and there[2] == 0 and string.match(there[1], '^([1-9]%d*)!gone$')  -- see remove.lua
if expected == '0' then
  if there and not gone then return there end
elseif not there or string.format('%.0f', there[2]) ~= expected then
  return there
end
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local version = expected == '0' and math.max(now, (gone or 0) + 1) or expected + 1
-- A key expires when the clock, in whole milliseconds, is past its time: so the next TIME is past the version as well.
-- That outlasts the ttl only where the clock has stepped back, and by no more than the step.
local px = string.format('%.0f', math.max(tonumber(ARGV[2]), math.floor((version - now) / 1000) + 1))
if expected == '0' then
  -- This EXCAS writes nothing, because nothing of version 1 is there.  A server whose EXCAS takes no PX refuses it: so
  -- the first acquire fails, and not the first renewal.
  redis.call('EXCAS', key, value, '1', 'PX', px)
  redis.call('EXSET', key, value, 'PX', px, 'ABS', string.format('%.0f', version))
  return version
end
local answer = redis.call('EXCAS', key, value, expected, 'PX', px)
if type(answer) == 'table' and answer[1].ok == 'OK' then return answer[3] end
return redis.call('EXGET', key)
