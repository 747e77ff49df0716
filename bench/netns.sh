#!/bin/sh
# netns.sh N RATE[,DELAY_US] COMMAND... - runs COMMAND by mpirun on N "hosts": network namespaces with a host name, an address and a link
# of their own, so that ranks talk by TCP as machines do.  Links are limited to RATE by tc's tbf (100mbit, 10gbit) and made longer by DELAY_US
# by bench/hosts.c.  TCP=bbr names another congestion control than Reno, the one that every kernel allows in a namespace.  Needs root,
# iproute2 and OpenMPI.
#   bench/netns.sh 2 10gbit build/fovea train recipe.ini -o runs/two -t 1 --set train.shards=2
#   bench/netns.sh 4 100mbit,1000 build/fovea train recipe.ini -o runs/four -t 1 --set train.shards=4
set -eu
[ $# -ge 3 ] || { echo "netns.sh N RATE[,DELAY_US] COMMAND..." >&2; exit 2; }
n=$1 rate=${2%%,*} delay=0 burst=256kb
case $2 in *,*) delay=${2##*,} ;; esac
case $rate in *gbit) burst=10mb ;; esac # at least what passes in a tick of the kernel's clock
shift 2
here=$(mktemp -d)
bridge=fvbr$$ switch=''
clean() {
    [ -z "$switch" ] || kill "$switch" 2> /dev/null || true
    for i in $(seq 1 "$n"); do ip netns del "fv$$-$i" 2> /dev/null || true; done
    ip link del "$bridge" 2> /dev/null || true
    rm -rf "$here"
}
trap clean EXIT

if [ "$delay" = 0 ]; then
    ip link add "$bridge" type bridge
    ip link set "$bridge" up
else
    cc -O2 -o "$here/hosts" "$(dirname "$0")/hosts.c"
    "$here/hosts" "fv$$t" "$n" "$delay" > "$here/ready" &
    switch=$!
    while [ ! -s "$here/ready" ]; do sleep 0.05; kill -0 "$switch"; done
fi
for i in $(seq 1 "$n"); do
    ns=fv$$-$i
    ip netns add "$ns"
    if [ "$delay" = 0 ]; then
        ip link add "fv$$h$i" type veth peer name eth0 netns "$ns"
        ip link set "fv$$h$i" master "$bridge" up
    else
        ip link set "fv$$t$i" netns "$ns" name eth0
    fi
    ip netns exec "$ns" ip addr add "10.77.0.$i/24" dev eth0
    ip netns exec "$ns" ip link set eth0 up
    ip netns exec "$ns" ip link set lo up
    ip netns exec "$ns" sysctl -qw net.ipv4.tcp_congestion_control="${TCP:-reno}"
    ip netns exec "$ns" tc qdisc add dev eth0 root tbf rate "$rate" burst "$burst" latency 400ms
    echo "10.77.0.$i slots=1" >> "$here/hosts.txt"
done

# What mpirun calls instead of ssh: HOST COMMAND...
cat > "$here/agent" << AGENT
#!/bin/sh
i=\${1##*.}
shift
exec ip netns exec fv$$-\$i unshare -u sh -c "hostname fv\$i; \$*"
AGENT
chmod +x "$here/agent"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ip netns exec "fv$$-1" unshare -u sh -c 'hostname fv1; exec "$@"' sh mpirun --mca plm_rsh_agent "$here/agent" --mca btl tcp,self \
    --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 --bind-to none --hostfile "$here/hosts.txt" -np "$n" --wdir "$PWD" "$@"
