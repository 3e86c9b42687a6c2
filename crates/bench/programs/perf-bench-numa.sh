# needs: perf
score() {
    under perf bench numa mem -p 2 -t 2 -P 64 -s "$SECONDS_LONG" -q 2>/dev/null |
        awk '/GB\/sec total speed/ { print $1 }'
}
