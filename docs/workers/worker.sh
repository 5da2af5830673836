#!/bin/sh
# Sends each job, as the line of JSON that it is, to an API, and answers with a line.
echo '{"ready": true}'
while IFS= read -r job; do
  if printf '%s' "$job" | curl --fail --silent --show-error --max-time 8 --output /dev/null --data-binary @- "$API_URL"; then
    echo '{"outcome": "done"}'
  else
    echo '{"outcome": "retry", "reason": "the API refused it"}'
  fi
done
