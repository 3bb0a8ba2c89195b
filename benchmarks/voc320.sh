#!/usr/bin/env bash
# Trains what results/voc320 does not have yet: chains of items side by side on one GPU, for so many
# minutes. Then everything saves itself, and the same command goes on with it.
#
#     benchmarks/voc320.sh VOC WEIGHTS OUT MINUTES CHAIN...
#
# VOC and WEIGHTS are as of `rankdet reproduce`, and must be those of the records. OUT is the folder
# of records and trainings: copy results/voc320/*.json there first, and finished rows are kept.
# Copy OUT/*.json and OUT/runs/*.json back after each call: the rest is only needed to go on.
#
# The chains, each of which does its items one after the other:
#
#     long       AP-loss and OHEM with six seeds in the long schedule, AUC-loss with three
#     longest    AP-loss, OHEM and focal loss with one seed in the longest schedule
#     flips      rates, then seeds, with flips alone and larger first weights of pyramid and heads
#     ssd        rates, then seeds, of SSD
#     rois       rates, then Faster R-CNN with 512, 2,048 and 4,096 regions
#     ablations  images ranked together, delta, sigmoid, interpolation, sampling, GHM and DR, convergence
#     trials     what a few changes do, in the short and in the long schedule
#     alone      what measures time, attacks, or runs row by row: give no other chain beside it
#
# `longest` and `trials` take learning rates that `long` chooses: begin them when `long` has those.
# Where a rate that is newer than the record is chosen, `long` stops, since the rows of that loss have
# another one: OPTIONS=--force drops them, and trains them again.
#
# Variables: SCALE (voc320; smoke tries the chains in a minute), DEVICE (cuda), JOBS (trainings of a
# chain at the same time, 4), OPTIONS (of every item, such as "--seeds 3 --set data.augmentation=flip"),
# RANKDET (rankdet; for example "python3 -m rankdet").
set -euo pipefail

if [ $# -lt 5 ]; then
    sed -n '/^#!/d; /^set /q; s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
voc=$1 weights=$2 out=$3 minutes=$4
shift 4
if ! [[ $minutes =~ ^[0-9]+$ ]]; then
    echo "voc320.sh: MINUTES = '$minutes': expected a whole number." >&2
    exit 2
fi
minutes=$((10#$minutes)) # 08 is no octal number
read -ra rankdet <<< "${RANKDET:-rankdet}"
read -ra options <<< "${OPTIONS:-}"
end=$((SECONDS + 60 * minutes))
mkdir -p "$out"

# Runs an item until it is finished or the time is over; options follow its name.
item() {
    local left=$((end - SECONDS))
    if [ "$left" -le 0 ]; then
        echo "$1: the time is over."
        return 1
    fi
    # In the foreground: the signal goes to the command, which hands it on to its trainings.
    timeout --foreground --signal=TERM "$left" "${rankdet[@]}" reproduce "$@" \
        --scale "${SCALE:-voc320}" --voc "$voc" --weights "$weights" --out "$out" \
        --device "${DEVICE:-cuda}" --jobs "${JOBS:-4}" ${options[@]+"${options[@]}"}
}

chain_long() {
    item rates-retinanet-long --delete-runs
    item evidence-retinanet --seeds 6 --rows "long: AP-Loss" --rows "long: CE-Loss"
    item evidence-retinanet --rows "long: AUC-Loss"
}
chain_longest() {
    item longest-retinanet --rows "AP-Loss: seed 0" --rows "CE-Loss + OHEM: seed 0" \
        --rows "Focal Loss: seed 0"
}
chain_flips() {
    item rates-retinanet-flips --delete-runs
    item rates-retinanet-flips-long --delete-runs
    item evidence-retinanet-flips --seeds 6 --rows "long: AP-Loss" --rows "long: CE-Loss"
    item evidence-retinanet-flips --rows "long:"
    item evidence-retinanet-flips
}
chain_ssd() {
    item rates-ssd --delete-runs
    item rates-ssd-long --delete-runs
    item evidence-ssd --seeds 6 --rows "long: AP-Loss" --rows "long: CE-Loss"
    item evidence-ssd --rows "long:"
    item evidence-ssd
}
chain_rois() {
    item rates-faster-rcnn --delete-runs
    item rois --rows ": 512" --rows ": 2048" --rows ": 4096"
}
chain_ablations() {
    local name
    for name in ranked-together delta sigmoid interpolation sampling; do item "$name" --delete-runs; done
    item rates-ghm-dr --set detector.backbone=resnet50 --delete-runs
    item ghm-dr --set detector.backbone=resnet50 --delete-runs
    item convergence --delete-runs
}
chain_trials() {
    item trials --delete-runs
    item trials-long --delete-runs
}
chain_alone() {
    local name
    for name in time-share gradient-size robustness predictions imbalance; do item "$name"; done
}

declare -A running
for chain in "$@"; do
    if ! declare -F "chain_$chain" > /dev/null; then
        echo "voc320.sh: there is no chain '$chain'." >&2
        exit 2
    fi
    if [ -n "${running[$chain]-}" ]; then
        echo "voc320.sh: the chain '$chain' is named twice." >&2
        exit 2
    fi
    running[$chain]=waiting
done

# Waits for a chain, whatever signals come meanwhile, and ends with its status.
ended() {
    local status
    while true; do
        if wait "$1"; then return 0; else status=$?; fi
        kill -0 "$1" 2> /dev/null || return "$status"
    done
}
stop() {
    local group
    for group in "${running[@]}"; do kill -TERM -- "-$group" 2> /dev/null || true; done
}

is_shared=false
if [ "${DEVICE:-cuda}" = cuda ] && command -v nvidia-cuda-mps-control > /dev/null; then
    if ! [[ " $* " == *" alone "* ]]; then is_shared=true; fi
fi
if $is_shared; then
    # Kernels of different trainings then run at the same time instead of in turns.
    nvidia-cuda-mps-control -d && trap 'echo quit | nvidia-cuda-mps-control' EXIT
fi
set -m # each chain is a group of processes, which a signal reaches as a whole
trap stop INT TERM HUP
for chain in "$@"; do
    # Of its own: `set -e` ends a chain with the item that fails or is stopped. A signal does not end
    # it before its item has saved itself.
    (trap : TERM; set -e; "chain_$chain") > "$out/chain-$chain.log" 2>&1 &
    running[$chain]=$!
done
status=0
for chain in "$@"; do
    if ended "${running[$chain]}"; then
        echo "$chain: finished"
    else
        echo "$chain: not finished (all in $out/chain-$chain.log);" \
            "$(grep '[[:alpha:]]' "$out/chain-$chain.log" | tail -n 1)"
        status=1
    fi
done
exit $status
