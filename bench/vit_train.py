#!/usr/bin/env python3
"""Training of a ViT-S on images of 32 x 32, from the loader to the optimiser, beside PyTorch on the same GPU.

    bench/vit_train.py [--images cifar10/train.tar.gz] [--batch 512] [--updates 300] [--rounds 3] [--workers 8]
                       [--device cuda] [--tiny] [--ready FILE] [--after FILE]

Both read 50,000 colour images, flip and shift them at random by up to four pixels, normalise them and train
bench/configs/vit-small-32.json in bf16 with AdamW and clipping.  --images: a tar.gz of JPEG files of 32 x 32, one folder a
class, which fovea decodes itself and PyTorch gets decoded; else noise, made here.  PyTorch's model is that of cuda_peers.py,
compiled.  It gets its batches in three ways:

    samples   DataLoader with worker processes, torchvision's transforms on each image, pinned memory
    batches   DataLoader whose workers fetch whole batches of bytes; they are flipped and shifted on the GPU
    resident  no loader: all images lie in the GPU's memory as bytes, and batches are cut out of them there

A figure is the median over rounds of images a second, compilation and the first updates left out; wait is the share of the
time for which fovea's training waited for a batch.  With --ready and --after it takes turns with other benchmarks.
"""
import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import time

from timing import logged_rate

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOVEA = os.environ.get("FOVEA", os.path.join(ROOT, "build", "fovea"))
WAYS = ("samples", "batches", "resident")
COUNT, SIDE, SHIFT = 50000, 32, 4


def write_images(folder, count):
    """An IDX file of images and one of their labels."""
    with open(os.path.join(folder, "train-images-idx4-ubyte"), "wb") as f:
        f.write(struct.pack(">IIIII", 0x804, count, SIDE, SIDE, 3) + os.urandom(count * SIDE * SIDE * 3))
    with open(os.path.join(folder, "train-labels-idx1-ubyte"), "wb") as f:
        f.write(struct.pack(">II", 0x801, count) + bytes(i % 10 for i in range(count)))


def write_decoded(folder, archive):
    """The same files from an archive of JPEG files, labels in the order of the classes' names: what PyTorch reads."""
    from PIL import Image

    found = []
    with tarfile.open(archive) as f:
        for member in f:
            if member.isfile():
                found.append((member.name.split("/")[-2], Image.open(f.extractfile(member)).convert("RGB").tobytes()))
    classes = sorted({name for name, _ in found})
    with open(os.path.join(folder, "train-images-idx4-ubyte"), "wb") as f:
        f.write(struct.pack(">IIIII", 0x804, len(found), SIDE, SIDE, 3) + b"".join(pixels for _, pixels in found))
    with open(os.path.join(folder, "train-labels-idx1-ubyte"), "wb") as f:
        f.write(struct.pack(">II", 0x801, len(found)) + bytes(classes.index(name) for name, _ in found))


def write_recipe(folder, args):
    model = json.load(open(os.path.join(ROOT, "bench", "configs", "vit-small-32.json")))
    keys = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "patch_size")
    if args.tiny:
        model.update(hidden_size=48, num_hidden_layers=2, intermediate_size=96)
    lines = ["[model]", "architecture = ViTForImageClassification"] + [f"{k} = {model[k]}" for k in keys]
    train = os.path.abspath(args.images) if args.images else os.path.join(folder, "train-images-idx4-ubyte")
    lines += ["[data]", "objective = image_classify", f"train = {train}", "flip = true", f"shift = {SHIFT}",
              "[train]", f"batch_rows = {args.batch}", "batch_tokens = 1000000", "lr = 1e-6", "warmup = 0",
              "schedule = constant", "clip = 1", f"dtype = {'f32' if args.tiny else 'bf16'}", f"updates = {args.updates}",
              "log_every = 10", "save_every = 0", "eval_every = 0", "prefetch = 16", f"workers = {args.workers}"]
    path = os.path.join(folder, "vit.ini")
    open(path, "w").write("\n".join(lines) + "\n")
    return path


def fovea(recipe, folder, args, number):
    """Images a second over the second half of the updates, and the share of the time that batches were waited for."""
    run = os.path.join(folder, f"run{number}")
    done = subprocess.run([FOVEA, "train", recipe, "-o", run, "-d", args.device, "-q"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr.strip())
    lines = [json.loads(line) for line in open(os.path.join(run, "train.jsonl"))]
    steps = [e for e in lines if e["event"] == "train"]
    a, b = steps[len(steps) // 2], steps[-1]
    return logged_rate(a, b), b.get("wait", 0)


# ---- PyTorch ----

def peer(args):
    import torch
    import cuda_peers

    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    cuda_peers.DEVICE = device = args.device
    raw = torch.frombuffer(bytearray(open(os.path.join(args.peer, "train-images-idx4-ubyte"), "rb").read()[20:]),
                           dtype=torch.uint8).view(-1, SIDE, SIDE, 3).permute(0, 3, 1, 2).contiguous()
    labels = torch.frombuffer(bytearray(open(os.path.join(args.peer, "train-labels-idx1-ubyte"), "rb").read()[8:]),
                              dtype=torch.uint8).long()
    image = torch.zeros(args.batch, 3, SIDE, SIDE, device=device)
    label = torch.zeros(args.batch, dtype=torch.long, device=device)
    model = cuda_peers.Vit(width=48 if args.tiny else 384, layers=2 if args.tiny else 12, heads=6, side=SIDE, patch=4,
                           labels=10).to(device)
    update = cuda_peers.training(model, (image, label), 1.0)
    for _ in range(3):
        update()
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def sources(way):
        """Endless batches, as (image, label) on the device."""
        if way == "resident":
            everything, names = raw.to(device), labels.to(device)
            while True:
                for at in torch.randperm(len(raw), device=device).split(args.batch):
                    if len(at) == args.batch:
                        yield augment(everything[at]), names[at]
        loader = samples() if way == "samples" else batches()
        while True:
            for x, y in loader:
                x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
                yield (x if way == "samples" else augment(x)), y

    def changed(x):
        """Flipped and shifted: each image is read at its own offset of the padded batch."""
        n = len(x)
        padded = torch.nn.functional.pad(x, (SHIFT,) * 4)
        at = torch.randint(0, 2 * SHIFT + 1, (2, n, 1), device=x.device)
        rows = at[0] + torch.arange(SIDE, device=x.device)
        columns = torch.arange(SIDE, device=x.device).expand(n, -1)
        columns = torch.where(torch.rand(n, 1, device=x.device) < 0.5, columns, SIDE - 1 - columns) + at[1]
        cut = padded[torch.arange(n, device=x.device)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return (cut.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25

    augment = torch.compile(changed, dynamic=False)

    def samples():
        from torchvision.transforms import v2

        transform = v2.Compose([v2.RandomCrop(SIDE, padding=SHIFT), v2.RandomHorizontalFlip(),
                                v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)])

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return len(raw)

            def __getitem__(self, i):
                return transform(raw[i]), labels[i]

        return torch.utils.data.DataLoader(Data(), args.batch, shuffle=True, drop_last=True, num_workers=args.workers,
                                           pin_memory=device == "cuda", prefetch_factor=4, persistent_workers=True)

    def batches():
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return len(raw)

            def __getitem__(self, i):
                return raw[i], labels[i]

        order = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(range(len(raw))), args.batch, True)
        return torch.utils.data.DataLoader(Data(), sampler=order, batch_size=None, num_workers=args.workers,
                                           pin_memory=device == "cuda", prefetch_factor=4, persistent_workers=True)

    made = {}
    for way in WAYS:  # workers start and kernels are compiled before anything is timed
        made[way] = sources(way)
        next(made[way])
    print("ready", flush=True)
    for line in sys.stdin:
        way, n = line.split()[0], int(line.split()[1])
        for i in range(n):
            if i == n // 3:
                wait()
                begin = time.perf_counter()
            x, y = next(made[way])
            image.copy_(x, non_blocking=True)
            label.copy_(y, non_blocking=True)
            update()
        wait()
        print((n - n // 3) * args.batch / (time.perf_counter() - begin), flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--images", help="a tar.gz of JPEG files, one folder a class; else noise")
    p.add_argument("--batch", type=int, default=512)
    p.add_argument("--updates", type=int, default=300)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--workers", type=int, default=8)
    p.add_argument("--device", default="cuda")
    p.add_argument("--tiny", action="store_true", help="a small model and few images: does it run at all?")
    p.add_argument("--ready", help="file that is made when PyTorch has compiled")
    p.add_argument("--after", help="file to wait for then, where others use the GPU until it is there")
    p.add_argument("--peer", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.peer:
        return peer(args)
    with tempfile.TemporaryDirectory() as folder:
        if args.images:
            write_decoded(folder, args.images)
        else:
            write_images(folder, 2000 if args.tiny else COUNT)
        recipe = write_recipe(folder, args)
        command = [sys.executable, os.path.abspath(__file__), "--peer", folder, "--batch", str(args.batch), "--workers",
                   str(args.workers), "--device", args.device] + ["--tiny"] * args.tiny
        other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if other.stdout.readline().strip() != "ready":
            sys.exit("PyTorch did not get ready")
        if args.ready:
            open(args.ready, "w").close()
        while args.after and not os.path.exists(args.after):
            time.sleep(0.1)
        found = {way: [] for way in ("fovea", *WAYS)}
        waits = []
        for number in range(args.rounds):
            rate, wait = fovea(recipe, folder, args, number)
            found["fovea"].append(rate)
            waits.append(wait)
            for way in WAYS:
                other.stdin.write(f"{way} {args.updates // 2}\n")
                other.stdin.flush()
                found[way].append(float(other.stdout.readline()))
        other.stdin.close()
        other.wait()
    middle = {way: statistics.median(figures) for way, figures in found.items()}
    print("| batches by | images/s | fovea is |\n| --- | --- | --- |")
    print(f"| fovea, {args.workers} workers, wait {statistics.median(waits):.3f} | {middle['fovea']:,.0f} | |")
    for way in WAYS:
        print(f"| PyTorch, {way} | {middle[way]:,.0f} | {middle['fovea'] / middle[way]:.2f} x |")


if __name__ == "__main__":
    sys.exit(main())
