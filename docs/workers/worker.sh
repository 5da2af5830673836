#!/bin/sh
# Sends each job, as the line of JSON that it is, to an API, and answers with a line.
echo '{"ready": true}'
while IFS= read -r job; do
  status=$(printf '%s' "$job" | curl --silent --max-time 8 --output /dev/null --write-out '%{http_code}' --data-binary @- "$API_URL")
  case $status in
    2*) echo '{"outcome": "done"}' ;;
    429) echo '{"outcome": "throttled", "after": 1}' ;;
    4*) echo "{\"outcome\": \"reject\", \"reason\": \"the API answered $status\"}" ;;
    *) echo "{\"outcome\": \"retry\", \"reason\": \"the API answered $status\"}" ;; # 000: it did not answer
  esac
done
