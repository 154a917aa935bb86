"""Drawings of protected evaluation, split learning and shuffled reports."""

from __future__ import annotations

from _drawings_canvas import BLUE, GREY, LIGHT_BLUE, ORANGE, PALE, Sheet


def protected_evaluation() -> Sheet:
    """Draw what server, gate and app do, and what crosses."""
    sheet = Sheet(452, "Protected evaluation")
    sheet.box(2, 2, 436, 40, fill=PALE)
    sheet.text(12, 22, "server", GREY, bold=True)
    sheet.text(426, 22, "model, ε, n rows, metrics", align="right")
    sheet.arrow((72, 42), (72, 110))
    sheet.text(86, 65, "model and proposal")

    sheet.box(2, 88, 436, 264)
    sheet.text(426, 101, "client", GREY, "right", bold=True)
    sheet.box(12, 112, 416, 34, fill=LIGHT_BLUE, edge=BLUE)
    sheet.text(24, 129, "gate", BLUE, bold=True)
    sheet.text(86, 129, "charges ε")
    sheet.arrow((72, 146), (72, 178))
    sheet.box(12, 180, 416, 34)
    sheet.text(24, 197, "app", GREY, bold=True)
    sheet.text(86, 197, "class probabilities and metrics")
    sheet.arrow((72, 214), (72, 260))
    sheet.text(86, 237, "private")
    sheet.box(12, 262, 416, 80, fill=LIGHT_BLUE, edge=BLUE)
    sheet.text(24, 279, "gate", BLUE, bold=True)
    sheet.text(
        86,
        302,
        "draws n rows;\nLaplace noise on each, or its code,\nrandomized; noise on each metric",
    )
    sheet.arrow((72, 342), (72, 400))
    sheet.text(86, 377, "report")

    sheet.box(2, 402, 436, 46, fill=PALE)
    sheet.text(12, 425, "server", GREY, bold=True)
    sheet.text(426, 425, "score of the clusters of all rows,\nmean of each metric", align="right")
    return sheet


def split_learning() -> Sheet:
    """Draw who holds what, what crosses the cut, and where the attack is."""
    sheet = Sheet(414, "Split learning with EmbeddingDP")
    dashes = (0, (4, 3))
    for name, left in (("party A", 2.0), ("party B", 226.0)):
        sheet.box(left, 20, 212, 166)
        sheet.text(left, 9, name, GREY, bold=True)
        middle = left + 118
        for y, words in ((30, "features"), (84, "bottom model")):
            sheet.box(middle - 82, y, 164, 32, words, fill=PALE)
            sheet.arrow((middle, y + 32), (middle, y + 53))
        words = "EmbeddingDP"
        sheet.box(middle - 82, 138, 164, 36, words, fill=LIGHT_BLUE, edge=BLUE, line=2, bold=True)
        sheet.arrow((middle, 174), (middle, 274), BLUE)
        sheet.text(middle + 8, 246, "bits or\na code", BLUE)
        sheet.line([left + 18, left + 18], [276, 100], GREY, 1.4, dashes=dashes)
        sheet.arrow((left + 18, 100), (middle - 84, 100), GREY)
        sheet.text(left + 24, 246, "gradients", GREY)
    sheet.line([2, 438], [214, 214], dashes=(0, (6, 4)))
    sheet.text(438, 200, "the cut", GREY, "right")

    sheet.box(2, 276, 436, 134)
    sheet.text(12, 290, "server", GREY, bold=True)
    sheet.box(12, 306, 200, 34, "top model", fill=PALE)
    sheet.box(238, 306, 188, 34, "labels", fill=PALE)
    sheet.arrow((238, 323), (214, 323))
    words = "attack: rebuild features\nfrom what crossed the cut"
    sheet.box(12, 352, 414, 48, words, edge=ORANGE, line=2, colour=ORANGE)
    return sheet


def shuffled_reports() -> Sheet:
    """Draw the three parts of a shuffled round, and whom each of both claims trusts."""
    sheet = Sheet(500, "Shuffled reports")
    sheet.box(2, 2, 436, 62, fill=LIGHT_BLUE, edge=BLUE)
    sheet.text(12, 17, "clients", BLUE, bold=True)
    sheet.text(86, 41, "draw a report at a local ε of 4, charge it,\nand seal it for the analyzer")
    sheet.arrow((44, 64), (44, 104))
    sheet.text(58, 85, "ciphertexts, by Flower")

    sheet.box(2, 106, 436, 62, fill=PALE)
    sheet.text(12, 121, "server", GREY, bold=True)
    sheet.text(86, 145, "knows who answered, and can read nothing;\nmixes them and drops the names")
    sheet.arrow((44, 168), (44, 208))
    sheet.text(58, 189, "one batch of a round")
    sheet.arrow((396, 208), (396, 168), BLUE)
    sheet.text(382, 189, "sums", BLUE, "right")

    sheet.box(2, 210, 436, 62, fill=LIGHT_BLUE, edge=BLUE)
    sheet.text(12, 225, "analyzer", BLUE, bold=True)
    sheet.text(86, 249, "opens them, and knows nobody;\nanswers once, for at least the minimum")

    sheet.text(2, 296, "What holds among 2,000 reports at δ = 10⁻⁶", bold=True)
    sheet.box(2, 312, 436, 84, edge=BLUE, line=2)
    sheet.text(16, 332, "central ε 0.892", BLUE, bold=True)
    sheet.text(
        16,
        366,
        "for the analyzer and for readers of the model,\nif the server tells nobody who is who",
    )
    sheet.box(2, 408, 436, 84, edge=ORANGE, line=2)
    sheet.text(16, 428, "local ε 4", ORANGE, bold=True)
    sheet.text(16, 462, "for everybody together, at any later time:\nnobody is trusted")
    return sheet
