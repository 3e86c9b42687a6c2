# needs: stress-ng
score() {
    under stress-ng --vm 4 --vm-bytes 64m --vm-keep --vm-method rand-set -t "$SECONDS_LONG" --metrics-brief 2>&1 |
        awk '$4 == "vm" { print $(NF - 1) }'
}
