-- How what is kept in Redis, and what is asked, is packed: in every script that knows the waitlist. Which fields they are is said in
-- waitlist.lua, limits.lua, acquire.lua and sliding_window.lua. The highest byte comes first, a zero byte ends a text.
local WAITLIST_FORMAT = '>I6I8I8I6I6I8I4I6I6'
local LIMIT_FORMAT = '>I4I8I8I8I4I4I4I1I8I8I1ss'
local JOB_FORMAT, JOB_BYTES = '>I8I8I4', 20
local SPANS_FORMAT = '>I6I6I6'
local ENTRY_FORMAT, ENTRY_BYTES = '>BI6I8I4', 19
