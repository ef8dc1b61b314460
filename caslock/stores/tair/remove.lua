-- Remove the key if exactly the expected version is under it.
-- KEYS: the key.  ARGV: the expected version.
-- Returns what is under the key afterwards: nil, or its value and its version.
local there = redis.call('EXGET', KEYS[1])
if not there or string.format('%.0f', there[2]) ~= ARGV[1] then return there end
redis.call('DEL', KEYS[1])  -- and not EXCAD, which a server without memory refuses
local clock = redis.call('TIME')
local ahead = there[2] - (clock[1] * 1000000 + clock[2])
if ahead >= 0 then
  -- The clock has stepped back.  A marker keeps the version until the clock has passed it, so that the next is larger.
  -- Its own version is 0, which no entry has.
  local px = string.format('%.0f', math.floor(ahead / 1000) + 1)
  redis.pcall('EXSET', KEYS[1], ARGV[1] .. '!gone', 'PX', px, 'ABS', '0')
end
return false
