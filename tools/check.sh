#!/bin/sh
# What `make check` runs.
#
#   check.sh [root] [user] [asan] [tsan] [architecture]      all of them when none is named
#
#   root           build with warnings as errors; the whole suite as root, with huge pages
#   user           the whole suite as an ordinary user, no huge page configured
#   asan           address and undefined-behaviour sanitizer; the whole suite as whoever started this
#   tsan           thread sanitizer; the tests of suite `sim`, which need no memory of the kernel's
#   architecture   who may include and call what
#
# Started by an ordinary user, root's part goes through sudo where that works without a password, else it is skipped.
# The last line is "N passed, N failed", over all parts; the status is 0 when something passed and nothing failed.

# shellcheck disable=SC2086 # several variables here are commands of several words
set -u
export LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1

top=$(cd "$(dirname "$0")/.." && pwd) || exit 1
cd "$top" || exit 1
ordinary_uid=65534

passed=0
failed=0
skipped=0
scratch=

cleanup() {
	[ -z "$scratch" ] || rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

is_root() {
	[ "$(id -u)" -eq 0 ]
}

heading() {
	printf '\n==== %s\n' "$1"
	part_began=$(date +%s)
}

# A directory that the ordinary user can reach and run programs from, wherever this checkout is.
make_scratch() {
	for parent in /tmp /var/tmp; do
		scratch=$(mktemp -d "$parent/hugepool-check.XXXXXX") || continue
		chmod 755 "$scratch"
		if printf '#!/bin/sh\n' >"$scratch/try" && chmod 755 "$scratch/try" && "$scratch/try" 2>/dev/null; then
			return 0
		fi
		rm -rf "$scratch"
	done
	scratch=
	echo 'Neither /tmp nor /var/tmp can hold programs.' >&2
	return 1
}

# build DIR OPTIONS...: configures and compiles; says more than that only about warnings and failures.
build() {
	dir=$1
	shift
	if [ -f "$dir/build.ninja" ]; then
		set -- --reconfigure "$dir" "$@"
	else
		rm -rf "$dir"
		set -- "$dir" "$@"
	fi
	echo "configuring and compiling $dir"
	if ! log=$(meson setup "$@" 2>&1); then
		echo "$log"
		return 1
	fi
	# ninja rather than meson compile: it has a quiet mode that still shows warnings.
	ninja -C "$dir" --quiet
}

# tally LOG STATUS: adds one run of meson test.
tally() {
	# shellcheck disable=SC2046 # three numbers
	set -- "$2" $(python3 tools/count-tests.py "$1")
	# meson can fail without a failing test.
	[ "$1" -eq 0 ] || [ "$3" -gt 0 ] || set -- "$1" "$2" 1 "$4"
	passed=$((passed + $2))
	failed=$((failed + $3))
	skipped=$((skipped + $4))
	echo "this part: $2 passed, $3 failed, $4 skipped, $(($(date +%s) - part_began)) s"
}

not_built() {
	failed=$((failed + 1))
	echo 'this part: could not be built'
}

# run_suite DIR COMMAND...: runs meson test for DIR with COMMAND in front, and adds up its log.
run_suite() {
	suite_dir=$1
	shift
	rm -f "$suite_dir/meson-logs/testlog.json"
	"$@"
	tally "$suite_dir/meson-logs/testlog.json" $?
}

# The architecture has a part of its own: without that it would be counted in each.
whole_suite='meson test --no-rebuild --print-errorlogs --no-suite architecture'

build_release() {
	build build -Dbuildtype=debugoptimized -Db_sanitize=none -Dwerror=true
}

part_root() {
	heading 'root: the whole suite as root, with huge pages'
	sudo=
	if ! is_root; then
		if ! sudo -n true 2>/dev/null; then
			echo 'SKIPPED: neither root, nor a sudo that asks for no password.'
			return
		fi
		sudo='sudo -n'
	fi
	build_release || {
		not_built
		return
	}
	run_suite build $sudo sh tests/with-hugepages.sh 0 -- $whole_suite -C build
	[ -z "$sudo" ] || $sudo chown -R "$(id -u):$(id -g)" build
}

# As root, the suite is built and run by the ordinary user in a copy of the sources: this checkout may be where that
# user cannot go, its build directory is not the user's to write, and that an ordinary user can build is worth a test.
part_user() {
	heading 'user: the whole suite as an ordinary user, no huge page configured'
	if ! is_root; then
		build_release || {
			not_built
			return
		}
		run_suite build $whole_suite -C build
		return
	fi
	make_scratch || {
		not_built
		return
	}
	mkdir "$scratch/home" "$scratch/hugepool"
	tar -cf - --exclude='./build*' --exclude=./.git . | tar -xf - --no-same-owner -C "$scratch/hugepool"
	chown -R "$ordinary_uid:$ordinary_uid" "$scratch/home" "$scratch/hugepool"
	as_user="setpriv --reuid=$ordinary_uid --regid=$ordinary_uid --clear-groups --no-new-privs env -i
		PATH=/usr/local/bin:/usr/bin:/bin HOME=$scratch/home TMPDIR=$scratch/home LC_ALL=$LC_ALL
		PYTHONDONTWRITEBYTECODE=1 CC=${CC:-cc} HUGEPOOL_PAGES_NONE=1"
	cd "$scratch/hugepool" || return
	$as_user sh tools/check.sh --build-release || {
		cd "$top" || return
		not_built
		return
	}
	run_suite build sh tests/with-hugepages.sh none -- $as_user $whole_suite -C build
	cd "$top" || return
	mkdir -p build/meson-logs
	cp "$scratch/hugepool/build/meson-logs/testlog.txt" build/meson-logs/testlog-user.txt && # before it goes
		echo "a copy of that log: $top/build/meson-logs/testlog-user.txt"
	rm -rf "$scratch"
	scratch=
}

# The leak detector stops its own process with ptrace, which some containers and every debugger forbid.
leaks_can_be_found() {
	echo 'int main(void) { return 0; }' >build-asan/leaks.c &&
		cc -fsanitize=address -o build-asan/leaks build-asan/leaks.c &&
		ASAN_OPTIONS=detect_leaks=1 build-asan/leaks 2>/dev/null
}

part_asan() {
	heading 'asan: the whole suite under the address and undefined-behaviour sanitizers'
	build build-asan -Ddebug_checks=true -Db_sanitize=address,undefined -Db_lundef=false || {
		not_built
		return
	}
	leaks=1
	leaks_can_be_found || {
		leaks=0
		echo 'leaks cannot be looked for here'
	}
	run_suite build-asan env "ASAN_OPTIONS=halt_on_error=1:detect_leaks=$leaks" \
		UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
		sh tests/with-hugepages.sh 0 -- $whole_suite -C build-asan --timeout-multiplier 3
}

part_tsan() {
	heading 'tsan: the sim suite under the thread sanitizer'
	build build-tsan -Ddebug_checks=true -Db_sanitize=thread -Db_lundef=false || {
		not_built
		return
	}
	# gcc 12's runtime fails at start where the kernel randomizes more address bits than it knows of.
	fixed_addresses='setarch -R'
	$fixed_addresses true 2>/dev/null || fixed_addresses=
	run_suite build-tsan env TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 $fixed_addresses \
		meson test -C build-tsan --no-rebuild --print-errorlogs --suite sim --timeout-multiplier 5
}

part_architecture() {
	heading 'architecture: who may include and call what'
	build_release || {
		not_built
		return
	}
	run_suite build meson test -C build --no-rebuild --print-errorlogs --suite architecture
}

if [ "${1:-}" = --build-release ]; then # this script, called again by part_user
	build_release
	exit
fi

[ $# -gt 0 ] || set -- root user asan tsan architecture
for part in "$@"; do
	case $part in
	root | user | asan | tsan | architecture) ;;
	*)
		echo "check.sh: no such part: $part" >&2
		exit 2
		;;
	esac
done

began=$(date +%s)
for part in "$@"; do
	"part_$part"
done

printf '\n%d skipped; took %d s\n' "$skipped" "$(($(date +%s) - began))"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
