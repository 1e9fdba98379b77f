"""The limits as scripts for Redis: one call, one atomic step, on the clock of Redis, which all Routers share.

``ADMIT`` is :func:`serve_app.core.admission.decide` over a hash (the two buckets of a tenant) and one sorted set a slot
subject (grant ids by the time their lease ends).
"""

from __future__ import annotations

from typing import Final

#: What each script begins with: the time, and what a bucket holds now.
_SHARED: Final = """
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1000000
local function level(left, at, per_minute)
  if not left then return per_minute end
  return math.min(per_minute, tonumber(left) + per_minute * math.max(0, now - tonumber(at)) / 60)
end
local function put(name, left)
  redis.call('HSET', KEYS[1], name, string.format('%.6f', left), name .. '_at', string.format('%.6f', now))
end
"""

#: KEYS: tenant's hash, then slot sets. ARGV: requests and tokens per minute ('' is no limit), tokens, grant id, lease
#: in seconds, then a limit for each slot set. Answers {'', ''}, or the reason (a slot's is its number) and the wait;
#: then what is left of requests and tokens ('' where there is no limit).
ADMIT: Final = (
    _SHARED
    + """
local kinds = {{'requests', tonumber(ARGV[1]), 1}, {'tokens', tonumber(ARGV[2]), tonumber(ARGV[3])}}
local why, wait, full_s = '', 0, 0
for _, kind in ipairs(kinds) do
  local name, per_minute, cost = kind[1], kind[2], kind[3]
  if per_minute then
    local known = redis.call('HMGET', KEYS[1], name, name .. '_at')
    local left = level(known[1], known[2], per_minute)
    local late = (math.min(cost, per_minute) - left) * 60 / per_minute
    if late > 0 and late > wait then why, wait = name, late end
    kind[4], kind[5] = left - cost, left
    full_s = math.max(full_s, (per_minute - kind[4]) * 60 / per_minute)
  end
end
local function told(reason, late, at)
  local answer = {reason, late}
  for i, kind in ipairs(kinds) do answer[i + 2] = kind[at] and string.format('%.6f', kind[at]) or '' end
  return answer
end
if why ~= '' then return told(why, string.format('%.6f', wait), 5) end
for i = 2, #KEYS do
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', string.format('%.6f', now))
  if redis.call('ZCARD', KEYS[i]) >= tonumber(ARGV[4 + i]) then return told(tostring(i - 2), '', 5) end
end
for _, kind in ipairs(kinds) do
  if kind[4] then put(kind[1], kind[4]) end
end
if full_s > 0 then redis.call('EXPIRE', KEYS[1], math.ceil(full_s) + 60) end
for i = 2, #KEYS do
  redis.call('ZADD', KEYS[i], string.format('%.6f', now + tonumber(ARGV[5])), ARGV[4])
  redis.call('EXPIRE', KEYS[i], math.ceil(tonumber(ARGV[5])) + 1)
end
return told('', '', 4)
"""
)

#: KEYS: tenant's hash, then slot sets. ARGV: requests and tokens per minute, how much of each
#: to give back, grant id.
SETTLE: Final = (
    _SHARED
    + """
local kinds = {{'requests', tonumber(ARGV[1]), tonumber(ARGV[3])}, {'tokens', tonumber(ARGV[2]), tonumber(ARGV[4])}}
for _, kind in ipairs(kinds) do
  local name, per_minute, back = kind[1], kind[2], kind[3]
  if per_minute and back ~= 0 then
    local known = redis.call('HMGET', KEYS[1], name, name .. '_at')
    if known[1] then put(name, math.min(per_minute, level(known[1], known[2], per_minute) + back)) end
  end
end
for i = 2, #KEYS do redis.call('ZREM', KEYS[i], ARGV[5]) end
return 1
"""
)

#: KEYS: the set of Routers, then slot sets. ARGV: Router, how long one counts after its last beat, lease in seconds,
#: 'XX' to renew only leases that are there or '' to write all again, then a grant id for each slot set. Answers whether
#: the Router was unknown (then leases may be too), and how many Routers there are.
BEAT: Final = """
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1000000
local unknown = redis.call('ZADD', KEYS[1], string.format('%.6f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.6f', now - tonumber(ARGV[2])))
for i = 2, #KEYS do
  local ends = string.format('%.6f', now + tonumber(ARGV[3]))
  if ARGV[4] == 'XX' then
    redis.call('ZADD', KEYS[i], 'XX', ends, ARGV[3 + i])
  else
    redis.call('ZADD', KEYS[i], ends, ARGV[3 + i])
  end
  redis.call('EXPIRE', KEYS[i], math.ceil(tonumber(ARGV[3])) + 1)
end
return {unknown, redis.call('ZCARD', KEYS[1])}
"""
