#!/bin/sh
# Runs one job on NebulaGrid from CI with curl and a token, and ends as the job ends.
#
#   NEBULA_ENDPOINT   https://nebula.lab.example
#   NEBULA_TOKEN      a token with the scopes read and submit: a project's, best of all
#   CI_KEY            tells this run from others, such as the pipeline's number: a step that is run again finds its job again
#   usage: nebula-run.sh JOB.json [FOLDER FOR THE JOB'S FILES]
#
# A 429, a 503 and a control plane that starts anew in the middle are waited out: every call may be repeated, none makes a second job.
set -eu
body=$1
folder=${2:-nebula-artifacts}
api="${NEBULA_ENDPOINT%/}/api/v1"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
# The token reaches curl by a file: on the command line everybody on the runner could read it.
(umask 077; printf 'Authorization: Bearer %s\n' "$NEBULA_TOKEN" > "$work/headers")

# call FILE CURL-ARGUMENTS: the answer's body goes to FILE. --retry waits as Retry-After asks; the loop is for answers that break off.
call() {
  file=$1; shift
  for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    code=0
    curl --silent --show-error --fail-with-body --header "@$work/headers" --output "$file" \
      --connect-timeout 10 --max-time 600 --retry 300 --retry-delay 2 --retry-max-time 600 --retry-connrefused "$@" || code=$?
    case $code in
      0) return 0 ;;
      7 | 18 | 28 | 35 | 52 | 55 | 56) echo "try $try: the control plane is away; again in 2 s" >&2; sleep 2 ;;
      22) echo "refused: $(head -c 2000 "$file")" >&2; return 2 ;;
      *) return "$code" ;;
    esac
  done
  return 1
}

# 1. Submit. The same key and body again is the same job, whose answer begins with its number: {"id":42,…
call "$work/job" --request POST --header 'Content-Type: application/json' --header "Idempotency-Key: $CI_KEY" --data "@$body" "$api/jobs/submit"
job=$(sed 's/^{"id": *\([0-9]*\).*/\1/' "$work/job")
echo "job $job: ${NEBULA_ENDPOINT%/}/jobs/$job/"

# 2. Wait. A question stays open for up to 25 s and is answered with the end.
state=
until [ "$state" = SUCCEEDED ] || [ "$state" = FAILED ] || [ "$state" = CANCELLED ]; do
  call "$work/job" "$api/jobs/$job/wait?timeout=25"
  state=$(sed -n 's/.*"state": *"\([A-Z]*\)".*/\1/p' "$work/job")
done

# 3. Its output, and its files.
call "$work/log" "$api/jobs/$job/logs/download"
cat "$work/log"
mkdir -p "$folder"
call "$work/files" "$api/jobs/$job/artifacts?page_size=200"
tr '{' '\n' < "$work/files" | sed -n 's/.*"rank": *\([0-9]*\), *"name": *"\([A-Za-z0-9._-]*\)".*/\1 \2/p' > "$work/names"
rank= name=
while read -r rank name || [ -n "$name" ]; do  # the last line may have no end
  case $name in .*) continue ;; esac
  call "$folder/$name" "$api/jobs/$job/artifacts/$rank/$name"
  echo "fetched $folder/$name"
done < "$work/names"

echo "job $job $state"
[ "$state" = SUCCEEDED ]
