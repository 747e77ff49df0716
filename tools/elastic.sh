#!/bin/sh
# elastic.sh -n RANKS [-l LEAST] [-r RESTARTS] [-f HOSTFILE] fovea train RECIPE -o DIR ... - trains by mpirun and, when a rank is lost,
# goes on from the newest checkpoint with the ranks that are left.
#
#   -n  ranks to begin with (at most train.shards)
#   -l  the fewest to go on with; 1 if not given
#   -r  restarts without a new checkpoint in between before it gives up; 3 if not given
#   -f  a hostfile of mpirun: hosts that no longer answer to $ELASTIC_PROBE HOST ("ssh -o ConnectTimeout=5 HOST true") are left out, and come
#       back when they answer again.  Without it one rank fewer is started for each that was lost.
#
# $MPIRUN_OPTIONS goes to mpirun.  The command gets --resume, so it may be started again itself, as Slurm (--requeue) and Kubernetes
# (backoffLimit) do.  It ends with the code of the last mpirun; SIGINT and SIGTERM are passed on and end it.
set -u
usage() { sed -n '2,3p' "$0" | sed 's/^# //' >&2; exit 2; }
ranks="" least=1 restarts=3 hosts=""
while getopts n:l:r:f: o; do
    case $o in
        n) ranks=$OPTARG ;;
        l) least=$OPTARG ;;
        r) restarts=$OPTARG ;;
        f) hosts=$OPTARG ;;
        *) usage ;;
    esac
done
shift $((OPTIND - 1))
if [ -z "$ranks" ] || [ $# -lt 3 ]; then usage; fi

# The directory of the run, where checkpoints show whether it gets on.
dir="" last=""
for a in "$@"; do
    case $last in -o | --output) dir=$a ;; esac
    last=$a
done
[ -n "$dir" ] || { echo "elastic.sh: -o DIR is missing" >&2; exit 2; }
newest() { find "$dir/checkpoints" -maxdepth 1 -name 'step-*' 2> /dev/null | sed -n 's/.*step-\([0-9]*\)$/\1/p' | sort -n | tail -n 1; }

work=$(mktemp -d) || exit 1
child=
trap 'rm -rf "$work"' EXIT
trap 'kill -TERM $child 2> /dev/null; wait $child; exit 143' TERM
trap 'kill -INT $child 2> /dev/null; wait $child; exit 130' INT

# The lines of hosts that answer; the number of their slots, at most RANKS.
live_hosts() {
    : > "$work/hosts"
    while read -r host rest; do
        case $host in '' | '#'*) continue ;; esac
        ${ELASTIC_PROBE:-ssh -o ConnectTimeout=5 -o BatchMode=yes} "$host" true < /dev/null > /dev/null 2>&1 && echo "$host $rest" >> "$work/hosts"
    done < "$hosts"
    awk -v most="$ranks" '{ n = 1; for (i = 2; i <= NF; i++) if ($i ~ /^slots=/) n = substr($i, 7); all += n } END { print all < most ? all + 0 : most }' "$work/hosts"
}

now=$ranks failed=0 before=$(newest)
while :; do
    [ -n "$hosts" ] && now=$(live_hosts)
    if [ "$now" -lt "$least" ]; then
        echo "elastic.sh: $now ranks are left, $least are needed" >&2
        exit 1
    fi
    # shellcheck disable=SC2086
    mpirun ${MPIRUN_OPTIONS:-} ${hosts:+--hostfile "$work/hosts"} -np "$now" "$@" --resume 2> "$work/errors" &
    child=$!
    wait $child
    code=$?
    cat "$work/errors" >&2
    [ $code -eq 0 ] && exit 0
    case $code in 130 | 143) exit $code ;; esac
    after=$(newest)
    failed=$((failed + 1))
    [ "$after" != "$before" ] && failed=1
    before=$after
    if [ $failed -gt "$restarts" ]; then
        echo "elastic.sh: $restarts restarts without a new checkpoint" >&2
        exit $code
    fi
    # A sentence that is no loss (a full disk, a wrong key) comes again with any number of ranks: it counts as a restart all the same.
    if [ -z "$hosts" ] && grep -q "rank [0-9]* is lost\|exited on signal" "$work/errors"; then now=$((now - 1)); fi
    echo "elastic.sh: going on from update ${after:-0} with ${hosts:+up to }$now ranks" >&2
done
