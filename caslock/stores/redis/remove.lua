-- Remove each key under which exactly the expected version is, and wake one of those who wait for it, and all who watch it.
-- KEYS, for each key: the key, its set of waiters, its list of tokens, its stream of changes; or four times the key where
-- it can have none of them.
-- ARGV, for each key: the expected version.
-- Returns for each key what is under it, or 0: removed, or -1: removed, and a waiter was woken; of a single key, no table.
-- What has to do with waking goes by pcall: it may fail, and costs no more than time.
local answers = {}
for i = 1, #ARGV do answers[i] = redis.call('GET', KEYS[4 * i - 3]) end
for i = 1, #ARGV do
  local version = ARGV[i]
  if answers[i] and string.match(answers[i], '^(%d+):') == version then
    local key, waiters, tokens, changes = unpack(KEYS, 4 * i - 3, 4 * i)
    local clock = redis.call('TIME')
    local now = clock[1] * 1000000 + clock[2]
    if now > tonumber(version) then redis.call('DEL', key)
    else redis.call('SET', key, version .. '!gone', 'PXAT', string.format('%.0f', math.floor(version / 1000) + 1)) end
    answers[i] = 0
    if changes ~= key then redis.pcall('XADD', changes, 'NOMKSTREAM', 'MAXLEN', '1', version .. '-1', '', '') end
    local ticket = waiters ~= key and redis.pcall('ZPOPMIN', waiters) or {}
    if ticket[1] and tonumber(ticket[2]) < now / 1000 then  -- that wait is over, and maybe others
      redis.pcall('ZREMRANGEBYSCORE', waiters, '-inf', string.format('%.0f', now / 1000))
      ticket = redis.pcall('ZPOPMIN', waiters)
    end
    if ticket[1] then
      redis.pcall('RPUSH', tokens, '1')
      redis.pcall('PEXPIRE', tokens, '1000')
      answers[i] = -1
    end
  end
end
if #ARGV == 1 then return answers[1] end
return answers
