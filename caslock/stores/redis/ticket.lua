-- Take a ticket of a key's waiters.
-- KEYS: the key, its set of waiters, the list of tokens of this wait alone.
-- ARGV: how long the ticket counts, its name, how long the set lives; both times in ms.
local clock = redis.call('TIME')
local now = math.floor(clock[1] * 1000 + clock[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))  -- frees, so the rest may take memory
local raw = redis.call('GET', KEYS[1])
if (not raw or string.match(raw, '^[1-9]%d*!gone$')) and redis.call('ZCARD', KEYS[2]) == 0 then
  -- Nothing is there, and nobody waits (else one of them has just been woken, and writes next): end this wait at once.
  -- The token is in a list of its own: in the common one, another waiter would take it.
  redis.call('RPUSH', KEYS[3], '1')
  redis.call('PEXPIRE', KEYS[3], '1000')
  return 0
end
redis.call('ZADD', KEYS[2], string.format('%.0f', now + ARGV[1]), ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])  -- as long as the longest wait lasts, so nobody has to look at what it is
return 1
