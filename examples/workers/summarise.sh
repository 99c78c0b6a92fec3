#!/usr/bin/env bash
# The service `summarise` with curl, the text tools of Linux, and python3 to read JSON: summarise.sh [URL]
set -u
base="${1:-http://127.0.0.1:8420}"

post() { # url, token, document
  curl -sS --retry 30 --retry-connrefused --max-time 60 \
    -H 'Content-Type: application/json' -H "Authorization: Bearer $2" -d "$3" "$1"
}

get() { # a Python expression over `d`, the directive
  python3 -c 'import json, sys; d = json.loads(sys.argv[1]); print(eval(sys.argv[2]))' "$directive" "$1"
}

say() { # type, further members
  local head door
  door="$(echo "$1" | tr '[:upper:]' '[:lower:]')"
  head="$(get '", ".join(json.dumps(n) + ": " + json.dumps(d[n]) for n in
    ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id"))')"
  post "$base/v1/callbacks/$door" "$token" \
    "{$head, \"type\": \"$1\", \"timestamp\": \"$(date -u +%Y-%m-%dT%H:%M:%SZ)\"${2:+, $2}}"
}

while true; do
  leased="$(post "$base/v1/directives:lease" "" '{"service": "summarise", "max": 1, "wait_seconds": 20}')" || exit 1
  directive="$(python3 -c 'import json, sys
for d in json.loads(sys.argv[1])["directives"]: print(json.dumps(d))' "$leased")" || exit 1
  [ -n "$directive" ] || continue
  token="$(get 'd["callback_token"]')"
  say ACK > /dev/null
  source="$(get '(d["upstream"][-1]["result_ref"] if d["upstream"] else d["input_ref"])["uri"]')"
  made="$(get 'd["workspace_ref"]["uri"]')summarise/$(get 'd["attempt_no"]')/summary.txt"
  mkdir -p "$(dirname "${made#file://}")"
  # A NUL after each sentence, the first few of them, and one text again.
  if [ -f "${source#file://}" ] && [ -r "${source#file://}" ] && sed -zE 's/^\s+//; s/\s+$//; s/([.!?])\s+/\1\x00/g' "${source#file://}" |
    head -z -n "$(get 'd["payload"]["sentences"]')" | paste -zsd ' ' | tr '\0' '\n' > "${made#file://}"; then
    output="$(get 'd["output_ref"]["uri"]')"
    mkdir -p "$(dirname "${output#file://}")"
    cp "${made#file://}" "${output#file://}"
    answer="$(say RESULT "\"status\": \"SUCCEEDED\", \"output_ref\": {\"uri\": \"$made\"}")"
  else
    answer="$(say RESULT '"status": "FAILED_RETRY", "error": {"code": "INPUT_UNAVAILABLE"}')"
  fi
  echo "$(get 'd["jobId"]') $answer"
done
