-- Write all keys if the version under each is the expected one, else none.
-- KEYS, for each key: the key, its stream of changes; or twice the key where nobody is to be woken.
-- ARGV, for each key: the expected version ('0': none), the ttl in ms, the value.
-- Returns for each key its new version, or if nothing was written, what is under it; of a single key, no table.
-- It checks before it writes, and its first write is the last that can fail: an error means that nothing has changed.
-- Those who wait for a change are woken by pcall: it may fail, and costs no more than time.
local clock = redis.call('TIME')
if #ARGV == 3 and ARGV[1] == '0' then
  -- Most puts are this one.  Without this path, to acquire and release takes 5 % longer.
  -- The TIME is the version, so the key outlasts its version by its ttl.
  local version = clock[1] .. string.format('%06d', clock[2])
  local written = redis.pcall('SET', KEYS[1], version .. ':' .. ARGV[3], 'NX', 'PX', ARGV[2])
  if written and written.ok then return tonumber(version) end
end
local raws, versions, matched, count = {}, {}, true, #ARGV / 3
for i = 1, count do
  local raw, expected = redis.call('GET', KEYS[2 * i - 1]), ARGV[3 * i - 2]
  local version = '0'
  if expected ~= '0' then version = string.match(raw or '', '^(%d+):')
  elseif raw then version = string.match(raw, '^([1-9]%d*)!gone$') end
  -- Lua counts in doubles: above 2^53 - 2, the next version could not be told from this one.
  if not version or expected ~= '0' and version ~= expected or tonumber(version) > 9007199254740990 then
    matched = false
  end
  raws[i], versions[i] = raw, version
end
if not matched then
  if count == 1 then return raws[1] end
  return raws
end
local now = clock[1] * 1000000 + clock[2]
for i = 1, count do
  local key, changes = KEYS[2 * i - 1], KEYS[2 * i]
  local version = math.max(now, versions[i] + 1)
  -- A key expires when the clock, in whole milliseconds, is past PXAT: so the next TIME is past the version as well.
  -- That outlasts the ttl only where the clock has stepped back, and by no more than the step.
  local expires = math.max(math.floor(now / 1000) + ARGV[3 * i - 1], math.floor(version / 1000) + 1)
  redis.call('SET', key, string.format('%.0f:', version) .. ARGV[3 * i], 'PXAT', string.format('%.0f', expires))
  versions[i] = version
  if changes ~= key then
    redis.pcall('XADD', changes, 'NOMKSTREAM', 'MAXLEN', '1', string.format('%.0f-0', version), '', '')
  end
end
if count == 1 then return versions[1] end
return versions
