#!/bin/sh
# Sends each job's line of JSON to an API, and answers with a line that repeats the job's call.
echo '{"ready": true}'
while IFS= read -r job; do
  call=${job#'{"call":'}
  call=${call%%,*}
  status=$(printf '%s' "$job" | curl --silent --max-time 8 --output /dev/null --write-out '%{http_code}' --data-binary @- "$API_URL")
  case $status in
    2*) answer='"outcome": "done"' ;;
    429) answer='"outcome": "throttled", "after": 1' ;;
    4*) answer="\"outcome\": \"reject\", \"reason\": \"the API answered $status\"" ;;
    *) answer="\"outcome\": \"retry\", \"reason\": \"the API answered $status\"" ;; # 000: it did not answer
  esac
  echo "{\"call\": $call, $answer}"
done
