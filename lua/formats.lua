-- The packed formats of values in Redis and of arguments. Part of every script with the waitlist.
-- The fields are described in waitlist.lua, limits.lua, acquire.lua and sliding_window.lua. Numbers
-- are big-endian, texts end with a zero byte.
local WAITLIST_FORMAT = '>I6I7I7I6I6I7I6I6I6I7'
local LIMIT_FORMAT = '>I8I8I8I8I4I8I8I1I8I8I1sss'
local JOB_FORMAT, JOB_BYTES = '>I8I8I8', 24
local SPANS_FORMAT = '>I6I6I6'
-- Running totals of a sliding log are counted modulo this number. It is 4,500 times the highest
-- limit, and the sum of two totals is exact in a double.
local TOTALS = 2 ^ 52
local ENTRY_FORMAT, ENTRY_BYTES = '>BI6I8I6', 21
