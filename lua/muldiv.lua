-- Products without loss of digits: a part of scripts with buckets or sliding counters, and of
-- forecast.lua. The specification is src/rules/algorithms/product.rs.

-- Returns a * b / c, rounded down, and the remainder: exact for integers below 2^53 with a quotient
-- below 2^53 and a c below 2^51, although a * b may be larger.
local function muldiv(a, b, c)
  local product = a * b
  if product < 2 ^ 52 then
    local quotient = math.floor(product / c)
    return quotient, product - quotient * c
  end
  -- Long division by the digits of `a`. Each remainder times the base is exact.
  local whole = math.floor(b / c)
  local rest, quotient, remainder, left = b - whole * c, 0, 0, a
  local base, unit = 256, 2 ^ 48
  if c > 2 ^ 43 then
    base, unit = 2, 2 ^ 52
  end
  while unit >= 1 do
    local digit = math.floor(left / unit)
    left = left - digit * unit
    remainder = remainder * base + digit * rest
    local more = math.floor(remainder / c)
    quotient, remainder = quotient * base + more, remainder - more * c
    unit = unit / base
  end
  return a * whole + quotient, remainder
end
