import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--resume")
parser.add_argument("--out", default="out")
arguments = parser.parse_args()
