x=10
if [ -n "$7" ]; then x=$(cat "$7/x"); fi
awk -v x="$x" -v lr="$1" -v from="$2" -v to="$3" -v metrics="$5" 'BEGIN {
  for (step = from; step < to; step++) x -= lr * 2 * x
  printf "{\"step\": %d, \"loss\": %.17g}\n", to, x * x >> metrics
  print x
}' > "$4/x"
