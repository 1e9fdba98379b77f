"""The way of a task as scripts for Redis: each is one atomic step, on the clock of Redis. The keys are told in
:mod:`serve_app.edge.task_bus`; what else is done to tasks is in :mod:`serve_app.edge.task_side_scripts`.

A script that has written once is no longer refused for want of memory, so those that end a task free something first.
"""

from __future__ import annotations

from typing import Final

#: The consumer group, and its one consumer: whose a task is, its hash says.
GROUP: Final = "workers"

#: What each script begins with. KEYS[1] is the prefix of all keys, which share one hash slot.
SHARED: Final = (
    f"""
local G = '{GROUP}'
"""
    + """
local p = KEYS[1]
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local function key(id) return p .. ':t:' .. id end
local function queue(class, priority) return p .. ':q:' .. class .. ':' .. priority end
local function get(id, ...) return redis.call('HMGET', key(id), ...) end
local function count(name, by)
  if redis.call('HINCRBY', p .. ':held', name, by) == 0 then redis.call('HDEL', p .. ':held', name) end
end
local function held(name) return tonumber(redis.call('HGET', p .. ':held', name) or 0) end
local function size(id)
  return redis.call('HSTRLEN', key(id), 'input') + redis.call('HSTRLEN', key(id), 'result')
end
local function sent_to(id)
  local at = redis.call('GET', p .. ':at:' .. id)
  return at and string.match(at, '^%S+')
end
local function admits(token) return redis.sha1hex(token) == redis.call('GET', p .. ':gate') end
local function stranger() return redis.error_reply('STRANGER no registered worker of this region') end
local function ring(class)
  redis.call('RPUSH', p .. ':bell:' .. class, '1')
  redis.call('LTRIM', p .. ':bell:' .. class, 0, 255)
end
local function tell(id, state, data)
  redis.call('XADD', p .. ':e:' .. id, 'MAXLEN', '=', 256, '*', 'state', state, 'data', data or '')
end
local function enqueue(id, class, priority)
  local entry = redis.call('XADD', queue(class, priority), '*', 'id', id)
  redis.call('HSET', key(id), 'entry', entry, 'state', 'queued', 'owner', '', 'claim', '')
  ring(class)
end
local function unqueue(id)
  local f = get(id, 'class', 'priority', 'entry')
  if f[3] then
    redis.call('XACK', queue(f[1], f[2]), G, f[3])
    redis.call('XDEL', queue(f[1], f[2]), f[3])
  end
  redis.call('ZREM', p .. ':later', id)
end
local function enliven(id, tenant)
  redis.call('ZADD', p .. ':live', now, id)
  count('live', 1); count('live/' .. tenant, 1)
  count('live_bytes', size(id)); count('live_bytes/' .. tenant, size(id))
end
local function unliven(id, tenant)
  -- What somebody else put there was never counted.
  if redis.call('ZREM', p .. ':live', id) == 0 then return end
  count('live', -1); count('live/' .. tenant, -1)
  count('live_bytes', -size(id)); count('live_bytes/' .. tenant, -size(id))
end
local function keep(id, set)
  redis.call('ZADD', p .. ':' .. set, now, id)
  count(set .. '_bytes', size(id))
end
local function forget(set, id)
  local bytes = size(id)
  redis.call('DEL', key(id), p .. ':e:' .. id, p .. ':parts:' .. id)
  count(set .. '_bytes', -bytes)
  redis.call('ZREM', p .. ':' .. set, id)
end
local function trim(set, most, ttl_ms, most_bytes)
  local old = redis.call('ZRANGEBYSCORE', p .. ':' .. set, '-inf', now - tonumber(ttl_ms), 'LIMIT', 0, 100)
  for _, id in ipairs(old) do forget(set, id) end
  local over = math.min(100, redis.call('ZCARD', p .. ':' .. set) - tonumber(most))
  if over > 0 then
    for _, id in ipairs(redis.call('ZRANGE', p .. ':' .. set, 0, over - 1)) do forget(set, id) end
  end
  for _ = 1, 100 do
    if held(set .. '_bytes') <= tonumber(most_bytes) then break end
    local first = redis.call('ZRANGE', p .. ':' .. set, 0, 0)[1]
    if not first then break end
    forget(set, first)
  end
end
local function joined(id)
  local root = redis.call('HGET', key(id), 'root')
  if not root or redis.call('HGET', key(root), 'state') ~= 'running' then return end
  local left = redis.call('HINCRBY', key(root), 'left', -1)
  tell(root, 'progress', left .. ' left')
  if left > 0 then return end
  redis.call('HSET', key(root), 'state', 'done', 'ended_ms', now)
  keep(root, 'done')
  tell(root, 'done')
end
local function bury(id, reason, message)
  local f = get(id, 'tenant', 'state')
  unqueue(id); unliven(id, f[1])
  redis.call('HSET', key(id), 'state', 'failed', 'reason', reason, 'message', message, 'ended_ms', now,
    'owner', '', 'claim', '')
  keep(id, 'dead')
  redis.call('HINCRBY', p .. ':buried', (redis.call('HGET', key(id), 'class') or '') .. '/' .. reason, 1)
  tell(id, 'failed', reason)
  joined(id)
end
"""
)

#: ARGV: id, tenant, class, priority, input, its digest, then limits: tasks, tasks of a tenant, bytes of all inputs,
#: of which a tenant has a quarter at most; then the seal, and what workers' tokens are compared with from now on.
#: Answers {new | known | conflict | full | tenant_full, state}, or {elsewhere, region}.
SUBMIT: Final = (
    SHARED
    + """
local id, tenant, class, priority, input = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local at = sent_to(id)
if at then return {'elsewhere', at} end
local known = get(id, 'digest', 'state')
if known[2] then return {known[1] == ARGV[6] and 'known' or 'conflict', known[2]} end
if held('live') >= tonumber(ARGV[7]) or held('live_bytes') + #input > tonumber(ARGV[9]) then return {'full', ''} end
if held('live/' .. tenant) >= tonumber(ARGV[8])
  or held('live_bytes/' .. tenant) + #input > tonumber(ARGV[9]) / 4 then
  return {'tenant_full', ''}
end
redis.call('SET', p .. ':gate', ARGV[11])
enqueue(id, class, priority)
redis.call('HSET', key(id), 'id', id, 'tenant', tenant, 'class', class, 'priority', priority, 'input', input,
  'seal', ARGV[10], 'digest', ARGV[6], 'attempts', 0, 'submitted_ms', now)
enliven(id, tenant)
tell(id, 'queued')
return {'new', 'queued'}
"""
)

#: ARGV: class, owner, claim, how long a claim holds in ms, the priorities in the order to look at, most attempts, then
#: what is kept: most results, their TTL in ms, their bytes, then the same of dead letters; then the worker's token.
#: Fails for a worker that is not registered for the class, or has another token.
#: Answers {id, since when another worker was silent in ms or -1, fields of the task ...}, or {'', ms until the next
#: retry is due or -1}.
CLAIM: Final = (
    SHARED
    + """
local class, owner, claim, idle_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
if not admits(ARGV[14]) or redis.call('HGET', p .. ':w:' .. owner, 'class') ~= class then return stranger() end
trim('done', ARGV[8], ARGV[9], ARGV[10])
trim('dead', ARGV[11], ARGV[12], ARGV[13])
for _, id in ipairs(redis.call('ZRANGEBYSCORE', p .. ':later', '-inf', now, 'LIMIT', 0, 100)) do
  redis.call('ZREM', p .. ':later', id)
  local f = get(id, 'class', 'priority')
  enqueue(id, f[1], f[2])
end
local function heal(priority)
  local q = queue(class, priority)
  redis.pcall('XGROUP', 'CREATE', q, G, '0', 'MKSTREAM')
  for _, id in ipairs(redis.call('ZRANGE', p .. ':live', 0, -1)) do
    local f = get(id, 'class', 'priority', 'state', 'entry')
    if f[1] == class and f[2] == priority and f[3] ~= 'retrying' and #redis.call('XRANGE', q, f[4], f[4]) == 0 then
      enqueue(id, class, priority)
    end
  end
end
local function bad(q, priority, entry, fields)
  redis.call('XACK', q, G, entry); redis.call('XDEL', q, entry)
  local id = 'bad/' .. entry
  redis.call('HSET', key(id), 'id', id, 'tenant', '', 'class', class, 'priority', priority, 'state', 'failed',
    'reason', 'bad_payload', 'message', 'what stood in the stream names no task', 'attempts', 0,
    'input', table.concat(fields, ' ', 1, math.min(#fields, 20)):sub(1, 1000), 'submitted_ms', now, 'ended_ms', now)
  keep(id, 'dead')
  redis.call('HINCRBY', p .. ':buried', class .. '/bad_payload', 1)
end
local function id_of(fields)
  for i = 1, #fields, 2 do if fields[i] == 'id' then return fields[i + 1] end end
end
local function run(q, priority, entry, fields, silent_ms)
  local id = id_of(fields)
  local f = id and get(id, 'state', 'entry', 'class', 'priority', 'tenant', 'input', 'submitted_ms') or {}
  local whole = f[1] and f[2] == entry and f[3] == class and f[4] == priority and f[5] and f[6] and tonumber(f[7] or '')
  local attempts = whole and redis.pcall('HINCRBY', key(id), 'attempts', 1)
  if type(attempts) ~= 'number' then bad(q, priority, entry, fields) return nil end
  redis.call('HSET', key(id), 'state', 'running', 'owner', owner, 'claim', claim, 'started_ms', now)
  tell(id, 'running', tostring(attempts))
  return {id, f[1] == 'running' and silent_ms or -1, unpack(redis.call('HGETALL', key(id)))}
end
local function up_ms()
  return tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')) * 1000
end
local function lost(q, priority)
  for _, row in ipairs(redis.call('XPENDING', q, G, 'IDLE', idle_ms, '-', '+', 10)) do
    local entry = redis.call('XRANGE', q, row[1], row[1])[1]
    if not entry then
      redis.call('XACK', q, G, row[1])
    else
      local id = id_of(entry[2])
      local f = id and get(id, 'state', 'attempts') or {}
      -- Who lives beats again soon after Redis was away.
      if f[1] ~= 'running' or up_ms() >= idle_ms / 2 then
        if f[1] == 'running' and tonumber(f[2]) >= tonumber(ARGV[7]) then
          bury(id, 'worker_lost', 'each worker that took it was lost')
        else
          redis.call('XCLAIM', q, G, G, 0, row[1], 'JUSTID')
          local got = run(q, priority, row[1], entry[2], row[3])
          if got then return got end
        end
      end
    end
  end
end
for i = 5, 6 do
  local priority = ARGV[i]
  local q = queue(class, priority)
  if redis.pcall('XPENDING', q, G).err then heal(priority) end
  local got = lost(q, priority)
  if got then return got end
  for _ = 1, 100 do
    local read = redis.call('XREADGROUP', 'GROUP', G, G, 'COUNT', 1, 'STREAMS', q, '>')
    if not read then break end
    local entry = read[1][2][1]
    got = run(q, priority, entry[1], entry[2], -1)
    if got then return got end
  end
end
local next_due = redis.call('ZRANGE', p .. ':later', 0, 0, 'WITHSCORES')
return {'', next_due[2] and math.max(0, tonumber(next_due[2]) - now) or -1}
"""
)

#: ARGV: id, claim, then how it ended: ``done``, result, URI of a result that lies elsewhere; ``later``, ms, reason
#: (where there is none it was no attempt), message; ``dead``, reason, message; ``back``, how long a claim holds in ms.
#: Answers ``lost`` where the claim no longer holds. Said twice, it is done once.
END: Final = (
    SHARED
    + """
local id, claim, how = ARGV[1], ARGV[2], ARGV[3]
local f = get(id, 'claim', 'state', 'tenant', 'class', 'priority', 'entry')
if f[1] ~= claim then
  return redis.call('HGET', key(id), 'ended_by') == claim .. '/' .. how and 'again' or 'lost'
end
if how == 'done' then
  unliven(id, f[3])
  redis.call('HDEL', key(id), 'input')
  redis.call('HSET', key(id), 'state', 'done', 'result', ARGV[4], 'uri', ARGV[5], 'ended_ms', now,
    'ended_by', claim .. '/done', 'owner', '', 'claim', '', 'reason', '', 'message', '')
  unqueue(id)
  keep(id, 'done')
  tell(id, 'done')
  joined(id)
  return 'done'
end
if how == 'dead' then
  bury(id, ARGV[4], ARGV[5])
  redis.call('HSET', key(id), 'ended_by', claim .. '/dead')
  return 'failed'
elseif how == 'later' then
  unqueue(id)
  redis.call('ZADD', p .. ':later', now + tonumber(ARGV[4]), id)
  redis.call('HSET', key(id), 'state', 'retrying', 'owner', '', 'claim', '', 'ended_by', claim .. '/later',
    'reason', ARGV[5], 'message', ARGV[6])
  if ARGV[5] == '' then redis.call('HINCRBY', key(id), 'attempts', -1) end
  tell(id, 'retrying', ARGV[5] == '' and ARGV[6] or ARGV[5])
  return 'retrying'
end
redis.call('XCLAIM', queue(f[4], f[5]), G, G, 0, f[6], 'IDLE', ARGV[4], 'JUSTID')
redis.call('HINCRBY', key(id), 'attempts', -1)
redis.call('HSET', key(id), 'state', 'queued', 'owner', '', 'claim', '', 'ended_by', claim .. '/back')
tell(id, 'queued', 'handed_back')
ring(f[4])
return 'queued'
"""
)
