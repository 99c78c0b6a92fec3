#!/usr/bin/env bash
# The service `summarise` with curl, the text tools of Linux, and python3 to read JSON: summarise.sh [URL]
# Without a URL, Lucius is where LUCIUS_URL says, or on this machine. On SIGTERM it finishes what it has and ends.
set -u
base="${1:-${LUCIUS_URL:-http://127.0.0.1:8420}}"
stopping="" leasing="" leased="$(mktemp)"
trap 'stopping=1; [ -z "$leasing" ] || kill "$leasing"' TERM INT
trap 'rm -f "$leased"' EXIT

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

while [ -z "$stopping" ]; do
  # In the background, so that the trap can end it: a poll that no worker reads would take the next directive.
  curl -sS --retry 30 --retry-connrefused --max-time 60 -H 'Content-Type: application/json' \
    -d '{"service": "summarise", "max": 1, "wait_seconds": 20}' "$base/v1/directives:lease" > "$leased" &
  leasing=$!
  [ -z "$stopping" ] || kill "$leasing" # told to end before the trap knew whom
  wait "$leasing"
  ended=$?
  [ -z "$stopping" ] || { wait "$leasing"; break; } # the signal ended the first wait, perhaps before curl
  leasing=""
  [ "$ended" = 0 ] || exit 1
  directive="$(python3 -c 'import json, sys
for d in json.load(open(sys.argv[1]))["directives"]: print(json.dumps(d))' "$leased")" || exit 1
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
