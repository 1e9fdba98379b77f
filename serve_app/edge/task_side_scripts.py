"""What workers, watchers and operators do to tasks besides, as scripts for Redis."""

from __future__ import annotations

from typing import Final

from serve_app.edge.task_scripts import SHARED

#: ARGV: id, tenant, priority, digest, the limits of ``SUBMIT``, what workers' tokens are compared with from now on,
#: then id, class, input and seal of each part in their order. Answers as ``SUBMIT`` does. The task itself is in no
#: stream: it has ended when its parts have.
FAN_OUT: Final = (
    SHARED
    + """
local root, tenant, priority = ARGV[1], ARGV[2], ARGV[3]
local at = sent_to(root)
if at then return {'elsewhere', at} end
local known = get(root, 'digest', 'state')
if known[2] then return {known[1] == ARGV[4] and 'known' or 'conflict', known[2]} end
local parts, bytes = (#ARGV - 8) / 4, 0
for i = 11, #ARGV, 4 do bytes = bytes + #ARGV[i] end
if held('live') + parts > tonumber(ARGV[5]) or held('live_bytes') + bytes > tonumber(ARGV[7]) then
  return {'full', ''}
end
if held('live/' .. tenant) + parts > tonumber(ARGV[6])
  or held('live_bytes/' .. tenant) + bytes > tonumber(ARGV[7]) / 4 then
  return {'tenant_full', ''}
end
redis.call('SET', p .. ':gate', ARGV[8])
for i = 9, #ARGV, 4 do
  local id = ARGV[i]
  -- A part may be kept for longer than its task was, a dead letter above all; it would be trimmed while it runs.
  for _, set in ipairs({'dead', 'done'}) do
    if redis.call('ZSCORE', p .. ':' .. set, id) then forget(set, id) end
  end
  enqueue(id, ARGV[i + 1], priority)
  redis.call('HSET', key(id), 'id', id, 'tenant', tenant, 'class', ARGV[i + 1], 'priority', priority,
    'input', ARGV[i + 2], 'seal', ARGV[i + 3], 'root', root, 'attempts', 0, 'submitted_ms', now)
  enliven(id, tenant)
  tell(id, 'queued')
  redis.call('RPUSH', p .. ':parts:' .. root, id)
end
redis.call('HSET', key(root), 'id', root, 'tenant', tenant, 'class', ARGV[10], 'priority', priority, 'state', 'running',
  'digest', ARGV[4], 'attempts', 0, 'submitted_ms', now, 'started_ms', now, 'left', parts)
tell(root, 'running', parts .. ' left')
return {'new', 'running'}
"""
)

#: ARGV: class, owner, running, slots, how long a worker counts in s, its token, then id and claim of each task that
#: runs. Answers the claims that no longer hold; a task may be the same worker's again, under another claim. Registers
#: the worker, and fails where its token is not that of the region; the first one says which that is.
BEAT: Final = (
    SHARED
    + """
local class, owner = ARGV[1], ARGV[2]
-- The first write is one that a full Redis takes: who cannot renew is taken over, as a claim is never refused.
redis.call('ZREMRANGEBYSCORE', p .. ':workers:' .. class, '-inf', now - tonumber(ARGV[5]) * 1000)
local gate = redis.call('GET', p .. ':gate')
if gate and not admits(ARGV[6]) then return stranger() end
if not gate then redis.call('SET', p .. ':gate', redis.sha1hex(ARGV[6])) end
redis.call('ZADD', p .. ':workers:' .. class, now, owner)
redis.call('HSET', p .. ':w:' .. owner, 'class', class, 'running', ARGV[3], 'slots', ARGV[4])
redis.call('EXPIRE', p .. ':w:' .. owner, ARGV[5])
local gone = {}
for i = 7, #ARGV, 2 do
  local f = get(ARGV[i], 'claim', 'class', 'priority', 'entry')
  if f[1] == ARGV[i + 1] then
    redis.pcall('XCLAIM', queue(f[2], f[3]), G, G, 0, f[4], 'JUSTID')
  else
    gone[#gone + 1] = ARGV[i + 1]
  end
end
return gone
"""
)

#: ARGV: id, claim, what to tell. Tells the task's watchers of its progress while the claim holds.
TELL: Final = (
    SHARED
    + """
if get(ARGV[1], 'claim')[1] == ARGV[2] then tell(ARGV[1], 'progress', ARGV[3]) end
return 1
"""
)

#: ARGV: id. Answers the state it has then, or nothing for one that is not known. Who works at it loses his claim.
CANCEL: Final = (
    SHARED
    + """
local function cancel(id)
  local f = get(id, 'state', 'tenant', 'left')
  if f[1] ~= 'queued' and f[1] ~= 'running' and f[1] ~= 'retrying' then return f[1] end
  if not f[3] then
    unqueue(id); unliven(id, f[2])
    redis.call('HDEL', key(id), 'input')
  end
  redis.call('HSET', key(id), 'state', 'cancelled', 'ended_ms', now, 'owner', '', 'claim', '')
  keep(id, 'done')
  tell(id, 'cancelled')
  joined(id)
  return 'cancelled'
end
local state = cancel(ARGV[1])
if state == 'cancelled' then
  for _, part in ipairs(redis.call('LRANGE', p .. ':parts:' .. ARGV[1], 0, -1)) do cancel(part) end
end
return state
"""
)

#: ARGV: id, ``replay`` or ``drop``. Answers whether there was such a dead letter, and it could be done.
DEAD: Final = (
    SHARED
    + """
local id = ARGV[1]
if not redis.call('ZSCORE', p .. ':dead', id) then return 0 end
if ARGV[2] == 'drop' then forget('dead', id) return 1 end
local f = get(id, 'tenant', 'class', 'priority', 'reason')
if f[4] == 'bad_payload' then return 0 end
count('dead_bytes', -size(id))
redis.call('ZREM', p .. ':dead', id)
redis.call('HSET', key(id), 'attempts', 0, 'reason', '', 'message', '')
redis.call('HDEL', key(id), 'ended_ms', 'ended_by')
enliven(id, f[1])
enqueue(id, f[2], f[3])
tell(id, 'queued', 'replayed')
local root = redis.call('HGET', key(id), 'root')
local state = root and get(root, 'state')[1]
if state == 'running' or state == 'done' then redis.call('HINCRBY', key(root), 'left', 1) end
if state == 'done' then
  redis.call('HSET', key(root), 'state', 'running')
  redis.call('ZREM', p .. ':done', root)
  tell(root, 'running', 'replayed')
end
return 1
"""
)

#: ARGV: id, tenant, region, nonce, how long it is kept in ms, how many of a tenant. Notes that a task goes to a region,
#: if it is not here and is not noted to be in another one. Answers {here | known | new, region}.
SEND: Final = (
    SHARED
    + """
local id, set = ARGV[1], p .. ':sent:' .. ARGV[2]
if get(id, 'state')[1] then return {'here', ''} end
local before = sent_to(id)
redis.call('SET', p .. ':at:' .. id, (before or ARGV[3]) .. ' ' .. ARGV[4], 'PX', ARGV[5])
redis.call('ZADD', set, now, id)
redis.call('PEXPIRE', set, ARGV[5])
redis.call('ZREMRANGEBYSCORE', set, '-inf', now - tonumber(ARGV[5]))
for _ = 1, math.min(100, redis.call('ZCARD', set) - tonumber(ARGV[6])) do
  redis.call('DEL', p .. ':at:' .. redis.call('ZPOPMIN', set)[1])
end
return {before and 'known' or 'new', before or ARGV[3]}
"""
)

#: ARGV: id, tenant, nonce. Takes the note with this nonce back.
UNSEND: Final = (
    SHARED
    + """
local at = redis.call('GET', p .. ':at:' .. ARGV[1])
if at and string.match(at, '%S+$') == ARGV[3] then
  redis.call('DEL', p .. ':at:' .. ARGV[1])
  redis.call('ZREM', p .. ':sent:' .. ARGV[2], ARGV[1])
end
return 1
"""
)

#: ARGV: how long a worker counts in s, then classes. Answers for each class: waiting high, age of the oldest in ms (0
#: where none waits), the same of normal, running, workers alive, their slots.
STATS: Final = (
    SHARED
    + """
local told = {}
for i = 2, #ARGV do
  local running, row = 0, {}
  for _, priority in ipairs({'high', 'normal'}) do
    local q = queue(ARGV[i], priority)
    local pending = redis.pcall('XPENDING', q, G)
    pending = (not pending.err) and pending[1] or 0
    running = running + pending
    local oldest = 0
    local waiting = redis.call('XLEN', q) - pending
    if waiting > 0 then
      local last = '0-0'
      local groups = redis.pcall('XINFO', 'GROUPS', q)
      if not groups.err and groups[1] then
        for k = 1, #groups[1], 2 do
          if groups[1][k] == 'last-delivered-id' then last = groups[1][k + 1] end
        end
      end
      local first = redis.call('XRANGE', q, '(' .. last, '+', 'COUNT', 1)[1]
      if first then oldest = math.max(0, now - tonumber(string.match(first[1], '^(%d+)'))) end
    end
    row[#row + 1] = math.max(0, waiting); row[#row + 1] = oldest
  end
  local alive = redis.call('ZRANGEBYSCORE', p .. ':workers:' .. ARGV[i], now - tonumber(ARGV[1]) * 1000, '+inf')
  local slots = 0
  for _, owner in ipairs(alive) do slots = slots + tonumber(redis.call('HGET', p .. ':w:' .. owner, 'slots') or 0) end
  row[#row + 1] = running; row[#row + 1] = #alive; row[#row + 1] = slots
  told[#told + 1] = row
end
return told
"""
)
