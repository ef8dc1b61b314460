-- Write a value, unless one has been written with a larger fence.
-- KEYS: a hash with the fields "value" and "fence".  ARGV: the fence in decimal digits, the value.
-- Returns nil: written; else the larger fence.
local seen = redis.call('HGET', KEYS[1], 'fence')
-- Compared as text: Lua counts in doubles, which have 53 bits, and a fence may need more.
if seen and (#seen > #ARGV[1] or #seen == #ARGV[1] and seen > ARGV[1]) then return seen end
redis.call('HSET', KEYS[1], 'value', ARGV[2], 'fence', ARGV[1])
return false
