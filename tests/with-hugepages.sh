#!/bin/sh
# Runs a command with huge pages, of 2 MiB, and puts the kernel's setting back when it is over.
#
#   with-hugepages.sh N -- COMMAND...      raises nr_hugepages so that at least N pages are free
#   with-hugepages.sh NG -- COMMAND...     the same for pages of 1 GiB
#   with-hugepages.sh none -- COMMAND...   sets it to 0
#
# The one helper through which tests take huge pages. Only root may change the setting; for everybody else, and where
# the setting cannot be written, the command runs with what there is. A line on standard error says when that is too
# little.
#
# Those who change the setting, the bench included, queue at a lock. A call inside a call does not queue again
# (HUGEPOOL_PAGES_LOCKED=1 tells), so one call with N = 0 can keep the lock for a whole test suite. Inside of `none`
# nothing is raised (HUGEPOOL_PAGES_NONE=1).
#
# The former value is put back by a guardian in a session of its own, which waits for the end of this script. So it
# comes back after a failure, an interrupt, and even after a SIGKILL to the process group, which is how meson ends a
# test that hangs. The status is the command's.
set -u

pages=/sys/kernel/mm/hugepages/hugepages-2048kB

note() {
	echo "with-hugepages: $1" >&2
}

count() {
	cat "$pages/$1" 2>/dev/null || echo 0
}

available() {
	echo $(($(count free_hugepages) - $(count resv_hugepages)))
}

# What is configured. sysfs counts surplus pages in nr_hugepages when it is read, but not when it is written.
configured() {
	echo $(($(count nr_hugepages) - $(count surplus_hugepages)))
}

configure() {
	echo "$1" 2>/dev/null >"$pages/nr_hugepages"
}

# The guardian: `with-hugepages.sh --put-back VALUE`, standard input a pipe that nobody else but this script holds open.
if [ "${1:-}" = --put-back ]; then
	pages=$3
	read -r _
	configure "$2"
	[ "$(configured)" -eq "$2" ] || note "could not put nr_hugepages back to $2: it is $(configured)"
	exit 0
fi

if [ $# -lt 3 ] || [ "$2" != -- ]; then
	note 'usage: with-hugepages.sh N|none -- COMMAND...'
	exit 2
fi
wanted=$1
case $wanted in
none) ;;
[0-9]*G)
	wanted=${wanted%G}
	pages=/sys/kernel/mm/hugepages/hugepages-1048576kB
	;;
'' | *[!0-9]*)
	note "not a number of pages: $wanted"
	exit 2
	;;
esac
shift 2

if [ "${HUGEPOOL_PAGES_NONE:-}" = 1 ]; then
	exec "$@"
fi
if [ "$(id -u)" -ne 0 ] || [ ! -w "$pages/nr_hugepages" ]; then
	if [ "$wanted" = none ]; then
		[ "$(available)" -eq 0 ] || note "no right to take the $(available) huge pages away"
	elif [ "$(available)" -lt "$wanted" ]; then
		note "no right to configure huge pages: $(available) of $wanted are free"
	fi
	exec "$@"
fi

if [ "${HUGEPOOL_PAGES_LOCKED:-}" != 1 ]; then
	# Opened for reading: in a sticky folder not even root may open another's file with the flag that creates it.
	for lock in /run/lock/hugepool-hugepages.lock /tmp/hugepool-hugepages.lock; do
		[ -e "$lock" ] || (umask 022 && : >"$lock") 2>/dev/null
		if [ -r "$lock" ]; then
			exec 8<"$lock"
			break
		fi
	done
	if ! flock -n 8; then
		note 'waiting for another user of huge pages'
		flock 8
	fi
fi

former=$(configured)

# The pipe: 9 is our end, 7 the guardian's. Opening 9 both ways keeps either from waiting for the other.
pipe_dir=$(mktemp -d) || exit 1
mkfifo "$pipe_dir/end" || exit 1
# shellcheck disable=SC2094
exec 9<>"$pipe_dir/end" 7<"$pipe_dir/end"
rm -r "$pipe_dir"
setsid sh "$0" --put-back "$former" "$pages" <&7 7<&- 9>&- >/dev/null &
guardian=$!
exec 7<&-

# The command runs in the background so that a signal to this script alone reaches it too.
command=
ended_by=
# shellcheck disable=SC2317 # the traps call it
pass_on() {
	ended_by=$1
	[ -z "$command" ] || kill -s "$1" "$command" 2>/dev/null
}
trap 'pass_on HUP' HUP
trap 'pass_on INT' INT
trap 'pass_on TERM' TERM

if [ "$wanted" = none ]; then
	export HUGEPOOL_PAGES_NONE=1
	configure 0
	[ "$(available)" -le 0 ] || note "$(available) huge pages could not be taken away"
else
	target=$(($(count nr_hugepages) - $(available) + wanted))
	if [ "$target" -gt "$former" ]; then
		configure "$target"
		if [ "$(available)" -lt "$wanted" ]; then
			echo 1 2>/dev/null >/proc/sys/vm/compact_memory
			configure "$target"
		fi
	fi
	[ "$(available)" -ge "$wanted" ] || note "memory for $(available) of $wanted huge pages only"
fi

status=1
if [ -z "$ended_by" ]; then
	# A shell's background command has INT and QUIT ignored and no standard input: both are undone here.
	exec 3<&0
	env --default-signal=INT,QUIT HUGEPOOL_PAGES_LOCKED=1 "$@" <&3 3<&- 8>&- 9>&- &
	command=$!
	[ -z "$ended_by" ] || kill -s "$ended_by" "$command" 2>/dev/null
	wait "$command"
	status=$?
	# A signal ends the wait, not the command.
	while kill -0 "$command" 2>/dev/null; do
		wait "$command"
		status=$?
	done
fi

exec 9>&-
while kill -0 "$guardian" 2>/dev/null; do
	wait "$guardian"
done
exit "$status"
