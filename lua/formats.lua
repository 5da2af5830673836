-- The packed formats of values in Redis and of arguments, for all scripts. The fields are described
-- in waitlist.lua, limits.lua, acquire.lua and sliding_window.lua. Numbers are big-endian, texts
-- end with a zero byte.
local WAITLIST_FORMAT = '>I6I7I7I6I6I7I6I6I6I7'
local LIMIT_FORMAT = '>I2I1I8I8I8I8I8I8I4I8I8I1sss'
-- The first fields of a limit, which the shortcuts read: up to its span, and up to its index.
local LIMIT_SPAN_FORMAT = '>I2I1I8I8'
local LIMIT_START_FORMAT = '>I2I1I8I8I8I8I8'
local JOB_FORMAT = '>I8I8I8'
local JOB_BYTES = 24
local SPANS_FORMAT = '>I6I6I6'
-- Running totals of a sliding log stay below TOTALS, and go back by LAP, 2,250 times the highest
-- limit. So a total below LAP is at least the cost of all entries, which is the difference of two
-- totals modulo LAP.
local TOTALS = 4503599627370496
local LAP = 2251799813685248
local ENTRY_FORMAT = '>BI6I8I6'
local ENTRY_BYTES = 21
