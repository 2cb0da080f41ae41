"""The official homes of the data sets, and what is known of their files. Constants only.

For Fashion-MNIST size and checksums of the published files are known, for Person Activity size and
md5 of the one file in the archive, for SC-MA the sha256 of each person's file. Of Daily and Sports
Activities the sha256 of the segments that are read are known, taken from a public copy; of SHL
nothing, so that only the presence and the format of its files can be checked. Sums with text=True
are of the text with line ends as a single newline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reproduction.data.daily_sports import ACTIVITIES, SEGMENTS

UCI = "https://archive.ics.uci.edu"
FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
SHL = "http://www.shl-dataset.org"


@dataclass(frozen=True)
class Sum:
    """A checksum: kind is a name that hashlib knows."""

    kind: str
    hex: str
    size: int | None = None
    text: bool = False


@dataclass(frozen=True)
class Remote:
    """A file to download, from the first of `urls` that has it.

    wanted: of an archive, the pattern of the members to keep; its group 1 is where they go.
    """

    name: str
    urls: tuple[str, ...]
    check: Sum | None = None
    wanted: str | None = None


@dataclass(frozen=True)
class Source:
    title: str
    home: str
    licence: str
    megabytes: float  # to download, about
    remotes: tuple[Remote, ...]
    contents: Mapping[str, Sum] = field(default_factory=dict)  # of the files, unpacked


def _fashion(name: str, size: int, sha256: str) -> Remote:
    return Remote(f"{name}.gz", (f"{FASHION}/{name}.gz",), Sum("sha256", sha256, size))


def _texts(sums: Mapping[str, str]) -> dict[str, Sum]:
    return {name: Sum("sha256", value, text=True) for name, value in sums.items()}


_FASHION_MNIST = Source(
    title="Fashion-MNIST",
    home="https://github.com/zalandoresearch/fashion-mnist",
    licence="MIT",
    megabytes=30.9,
    remotes=(
        _fashion(
            "train-images-idx3-ubyte",
            26421880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        _fashion(
            "train-labels-idx1-ubyte",
            29515,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
        _fashion(
            "t10k-images-idx3-ubyte",
            4422102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        _fashion(
            "t10k-labels-idx1-ubyte",
            5148,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
    contents={
        "train-images-idx3-ubyte": Sum(
            "sha256", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888", 47040016
        ),
        "train-labels-idx1-ubyte": Sum(
            "sha256", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9", 60008
        ),
        "t10k-images-idx3-ubyte": Sum(
            "sha256", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b", 7840016
        ),
        "t10k-labels-idx1-ubyte": Sum(
            "sha256", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34", 10008
        ),
    },
)

_PERSON_ACTIVITY = Source(
    title="Localization Data for Person Activity",
    home=f"{UCI}/dataset/196",
    licence="CC BY 4.0",
    megabytes=4,
    remotes=(
        Remote(
            "person_activity.zip",
            (f"{UCI}/static/public/196/localization+data+for+person+activity.zip",),
            wanted=r"(?:^|/)(ConfLongDemo_JSI\.txt)$",
        ),
    ),
    contents={
        "ConfLongDemo_JSI.txt": Sum("md5", "280a677ae0d673ec9a50ada480d8a529", 21546346),
        # All rows with coordinates to 0.1 mm, without time stamps; persons C to E within 2 mm.
        "all_xyz.csv": Sum(
            "sha256", "6757a9b1e550fbfdc12d003f9f577661c12f93f24e243cf3c1ef385d852852d2", 8591786
        ),
    },
)

_SC_MA = Source(
    title="Activity Recognition from Single Chest-Mounted Accelerometer",
    home=f"{UCI}/dataset/287",
    licence="CC BY 4.0",
    megabytes=12,
    remotes=(
        Remote(
            "chest_accelerometer.zip",
            (
                f"{UCI}/static/public/287/"
                "activity+recognition+from+single+chest+mounted+accelerometer.zip",
                f"{UCI}/ml/machine-learning-databases/00287/"
                "Activity%20Recognition%20from%20Single%20Chest-Mounted%20Accelerometer.zip",
            ),
            wanted=r"(?:^|/)(\d+\.csv)$",
        ),
    ),
    contents=_texts(
        {
            "1.csv": "517c3182b69294e9d5b402b47fa27baa7d912e1f55063c12e2fe866895d4dc29",
            "2.csv": "94282f1b10cc77f85cae2ae9da5a644791505c63d861978f526368adc700d4a5",
            "3.csv": "1caa47a160e33b24728c64fadfc6d807fbc83e1f6ecd0326c15d9f2f08e85bbc",
            "4.csv": "d8ffa611da84fc99c0f53d75fb700f1e5cb9263fbca17be81a6e690be6055963",
            "5.csv": "f7900e7ed9bfbaaa488514acafd96a09e5d8e13b04b066425c3cfbb3ec125784",
            "6.csv": "e75c295681b5d73088709408421db4827fef53508529bfd239f2e132ada5aa91",
            "7.csv": "08eb87b81d7d26c69730b25d86d301e0f4dae22028508009770d1840b1602d5b",
            "8.csv": "5cb33776f413c4518cbd728483e5f1c093f086023c573817ee9f6214c510f961",
            "9.csv": "81237118f445b68eb68aa9576a39282f4820a00d4efb627a48fa90faf88d7715",
            "10.csv": "9c2be46118cbdd3fced0210e26f553ea2061cb4421887297c1d1f80ac50652dd",
            "11.csv": "d154a2d59c2a3ccfa91efcd3de23fe7e7e94789fdc9ef49957e723dbcfe18201",
            "12.csv": "c960a3770c6f047634f1bec1555f46f1ef3882a0446ecb4fec4801f18f79bc73",
            "13.csv": "d4fae870eb1fcd482a521448f6276853e8dcf7634febdb2ffeaac4a032b28222",
            "14.csv": "38afc987ff34d2a79717d0ac6ab891a3a34babb26c7e8e12ff6180c90cf0091e",
            "15.csv": "dd33fa778fff54a6cc58d2f1ae5ae8de30f50d83dd826ea924ecab5ee4750e3c",
        }
    ),
)

_DAILY_SPORTS = Source(
    title="Daily and Sports Activities",
    home=f"{UCI}/dataset/256",
    licence="CC BY 4.0",
    megabytes=170,
    remotes=(
        Remote(
            "daily_sports_activities.zip",
            (
                f"{UCI}/static/public/256/daily+and+sports+activities.zip",
                f"{UCI}/ml/machine-learning-databases/00256/data.zip",
            ),
            wanted=(
                rf"(?:^|/)((?:{'|'.join(ACTIVITIES)})/p[1-8]/"
                rf"s(?:{'|'.join(f'{s:02}' for s in SEGMENTS)})\.txt)$"
            ),
        ),
    ),
    # Of the segments s03, s06, ..., s60 of persons 1 to 8, one after another.
    contents=_texts(
        {
            "a01": "24b9e5f85f3df51c3f59099f47a05240a690d3097100758ad3b325888bda00a6",
            "a02": "715bbacf03595db7aeade20b942476da03f80f4605adeaee3baca9ae9c638d71",
            "a07": "42fe34471d870f59245deb1be84040de1598534cfbfcb5144a2caa4c49dc0be8",
            "a08": "a35cf665135463aab5382941aeebb8b24de7d300044615f9a8420bc395f39a56",
            "a09": "a0c14f9ba2ebef929ec05fd644253422768882e1a718365d8c20f1bb5ccdf73f",
            "a10": "81bfebb1acff05b6f3c3f431af70bd6c050969bc182315523934bf28896170b9",
            "a12": "6116a5824571525cafdef06d99e0cba5c64a93ec9efbdf063203bfaf1213f3e4",
            "a15": "888f31f89230a2a231ba62d20cf6557908c31e79ea1a41e824d76c0b56f33c6f",
        }
    ),
)

_SHL = Source(
    title="Sussex-Huawei Locomotion, preview of 59 hours",
    home=f"{SHL}/download",
    licence="for research; see the terms at its home",
    megabytes=5000,
    remotes=tuple(
        Remote(
            f"part{i}.zip",
            (f"{SHL}/wp-content/uploads/SHLDataset_preview_v1_part{i}.zip",),
            wanted=(r"(?:^|/)(User\d+/\d+/(?:Label|(?:Hand|Torso|Hips|Bag)_Motion)\.txt)$"),
        )
        for i in (1, 2, 3)
    ),
)

SOURCES: dict[str, Source] = {
    "fashion-mnist": _FASHION_MNIST,
    "person-activity": _PERSON_ACTIVITY,
    "sc-ma": _SC_MA,
    "daily-sports": _DAILY_SPORTS,
    "shl": _SHL,
}
