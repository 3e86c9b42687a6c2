# needs: sysbench
score() {
    under sysbench memory --threads=4 --memory-block-size=1M --memory-total-size=1T --time="$SECONDS_LONG" run |
        awk -F'[( ]+' '/ transferred / { print $4 }'
}
