#!/bin/sh
# Runs the model under libFuzzer and the address sanitizer, for FUZZ_SECONDS (60).
#
#   fuzz.sh BUILD_DIR
#
# It begins with the lists in corpus/ here; what it finds new stays in BUILD_DIR/fuzz/corpus, for the next time. Lists that
# fail are put into crashes/ here, which test_lists replays on every check: `test_lists -r FILE` says what one does.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
dir=$1/fuzz
seconds=${FUZZ_SECONDS:-60}

command -v clang >/dev/null || {
	echo 'clang is missing: apt install clang' >&2
	exit 1
}
mkdir -p "$dir/corpus" "$here/crashes"
cd "$top"
echo "Compiling the fuzzer in $dir"
# shellcheck disable=SC2046 # one word for each file
clang -std=gnu11 -D_GNU_SOURCE -g -O1 -fno-omit-frame-pointer -fsanitize=fuzzer,address -Iinclude -Isrc -Itests \
	$(find src -name '*.c' ! -path 'src/cli/*') \
	tests/model/engine.c tests/model/model.c tests/model/steps_files.c tests/model/steps_maps.c \
	tests/model/fuzz_lists.c -lpthread -o "$dir/fuzz_lists"
echo "Fuzzing for $seconds s"
status=0
# The limit is for a fuzzer that does not end by itself.
timeout -k 10 $((seconds + 120)) "$dir/fuzz_lists" -max_total_time="$seconds" -max_len=1200 -timeout=20 -print_final_stats=1 \
	-verbosity=1 -artifact_prefix="$here/crashes/" "$dir/corpus" "$here/corpus" >"$dir/log" 2>&1 || status=$?
grep -E 'stat::number_of_executed_units|stat::average_exec_per_sec' "$dir/log" || true
grep -E ' DONE ' "$dir/log" | tail -n 1 || true
if [ "$status" -ne 0 ]; then
	tail -n 40 "$dir/log" >&2
	echo "A list fails; it is in $here/crashes" >&2
fi
exit "$status"
