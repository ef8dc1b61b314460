-- Begin to watch a key: from now on each change of it is in the stream of its changes.
-- KEYS: the key, that stream.  ARGV: the version that is watched, how long the stream lives in ms.
-- Changes have the versions as ids, so who reads what came after `<version>-0` waits until that version is gone.
local raw = redis.call('GET', KEYS[1])
local there = string.match(raw or '', '^(%d+):') == ARGV[1]
local added = redis.pcall('XADD', KEYS[2], 'MAXLEN', '1', ARGV[1] .. (there and '-0' or '-1'), '', '')
if type(added) == 'table' and not string.find(added.err, 'smaller') then return added end  -- else it has it, or a newer one
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return there and 1 or 0
