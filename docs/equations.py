"""Equations of the gallery in LaTeX.

Those of blocks stand beside the plain text of `BlockInfo.equation`, which `visattn blocks NAME`
prints: the gallery is refused if the text of a block has changed and its equation here has not.
"""

from typing import NamedTuple


class Typeset(NamedTuple):
    """Lines of an equation in LaTeX, and the meaning of its symbols."""

    plain: str
    lines: tuple[str, ...]
    where: str = ""


SIGMOID = r"$\sigma$ is the sigmoid, $\odot$ the product with a gate that is repeated over its missing axes"

BLOCKS = {
    "se": Typeset(
        "y = x * s(W2 relu(W1 mean(x) + b1) + b2)",
        (r"y = x \odot \sigma\left(W_2 \, \mathrm{ReLU}(W_1 \bar{x} + b_1) + b_2\right)",),
        rf"$\bar{{x}}$ is the mean of each channel, {SIGMOID}.",
    ),
    "ese": Typeset(
        "y = x * hardsigmoid(W mean(x) + b), hardsigmoid(z) = min(max(z + 3, 0), 6) / 6",
        (r"y = x \odot h(W \bar{x} + b), \qquad h(z) = \frac{\min(\max(z + 3, 0), 6)}{6}",),
        r"$\bar{x}$ is the mean of each channel.",
    ),
    "eca": Typeset(
        "y = x * s(conv_k(mean(x))), along the channels, k = the odd one of t and t + 1, "
        "t = |log2(C) / 2 + 1 / 2| rounded down",
        (
            r"y = x \odot \sigma(\mathrm{conv}_k(\bar{x}))",
            r"t = \left\lfloor \frac{\log_2 C}{2} + \frac{1}{2} \right\rfloor",
        ),
        rf"The convolution runs along the channels; $k$ is the odd one of $t$ and $t + 1$; {SIGMOID}.",
    ),
    "srm": Typeset(
        "y = x * s(BN(w1 mean(x) + w2 std(x))), w1 and w2 per channel",
        (
            r"y = x \odot \sigma\left(\mathrm{BN}(w_1 \, \mathrm{mean}(x) + w_2 \, \mathrm{std}(x))\right)",
        ),
        rf"$w_1$ and $w_2$ are per channel, {SIGMOID}.",
    ),
    "gct": Typeset(
        "y = x * (1 + tanh(gamma v + beta)), v = sqrt(C) u / |u|, u = alpha |x_c|",
        (
            r"y = x \odot \left(1 + \tanh(\gamma v + \beta)\right)",
            r"v = \sqrt{C} \, \frac{u}{\lVert u \rVert}, \qquad u_c = \alpha_c \lVert x_c \rVert",
        ),
    ),
    "gc": Typeset(
        "y = x + W2 relu(LN(W1 z + b1)) + b2, z = sum_j softmax_j(k . x_j) x_j",
        (
            r"y = x + W_2 \, \mathrm{ReLU}(\mathrm{LN}(W_1 z + b_1)) + b_2",
            r"z = \sum_j \mathrm{softmax}_j(k \cdot x_j) \, x_j",
        ),
        "The map is the softmax over the places $j$.",
    ),
    "spatial": Typeset(
        "y = x * s(BN(conv_k([max_c x; mean_c x])))",
        (
            r"y = x \odot \sigma\left(\mathrm{BN}(\mathrm{conv}_k([\max_c x; \, \mathrm{mean}_c \, x]))\right)",
        ),
        f"{SIGMOID}.",
    ),
    "sse": Typeset("y = x * s(w . x)", (r"y = x \odot \sigma(w \cdot x)",), f"{SIGMOID}."),
    "gate": Typeset(
        "y = x * s(p . relu(Wx x + Wg g + b) + c), g the signal, or x itself without one",
        (r"y = x \odot \sigma\left(p \cdot \mathrm{ReLU}(W_x x + W_g g + b) + c\right)",),
        rf"$g$ is the gating signal, or $x$ itself without one; {SIGMOID}.",
    ),
    "stn": Typeset(
        "y[p] = x[theta(x) (p, 1)], bilinear; theta = W2 relu(W1 pools(relu convs(x)))",
        (
            r"y[p] = x[\theta(x) \, (p, 1)]",
            r"\theta(x) = W_2 \, \mathrm{ReLU}(W_1 \, \mathrm{pool}(\mathrm{ReLU}(\mathrm{conv}(x))))",
        ),
        "Features are read bilinearly; convolutions and poolings alternate.",
    ),
    "cbam": Typeset(
        "z = x * s(mlp(mean x) + mlp(max x)), mlp(p) = W2 relu(W1 p + b1) + b2;\n"
        "y = z * s(BN(conv_k([max_c z; mean_c z])))",
        (
            r"z = x \odot \sigma(\mathrm{mlp}(\mathrm{mean}\, x) + \mathrm{mlp}(\max x))",
            r"\mathrm{mlp}(p) = W_2 \, \mathrm{ReLU}(W_1 p + b_1) + b_2",
            r"y = z \odot \sigma\left(\mathrm{BN}(\mathrm{conv}_k([\max_c z; \, \mathrm{mean}_c \, z]))\right)",
        ),
        f"{SIGMOID}.",
    ),
    "bam": Typeset(
        "y = x + x * s(Mc + Ms), Mc = W2 relu(BN(W1 mean(x) + b1)) + b2,\n"
        "Ms = conv1(conv3(conv3(conv1 x))), each but the last with BN and relu, dilated 3 x 3",
        (
            r"y = x + x \odot \sigma(M_c + M_s)",
            r"M_c = W_2 \, \mathrm{ReLU}(\mathrm{BN}(W_1 \bar{x} + b_1)) + b_2",
            r"M_s = \mathrm{conv}_1(\mathrm{conv}_3(\mathrm{conv}_3(\mathrm{conv}_1(x))))",
        ),
        "Each convolution but the last has BN and ReLU; those of 3 × 3 are dilated.",
    ),
    "scse": Typeset(
        "y = x * s(W2 relu(W1 mean(x) + b1) + b2) + x * s(w . x)",
        (
            r"y = x \odot \sigma\left(W_2 \, \mathrm{ReLU}(W_1 \bar{x} + b_1) + b_2\right) "
            r"+ x \odot \sigma(w \cdot x)",
        ),
        f"{SIGMOID}.",
    ),
    "coordinate": Typeset(
        "y = x * s(Fh f_rows + bh) * s(Fw f_columns + bw), "
        "f = hardswish(BN(F1 [mean of each row; mean of each column] + b1))",
        (
            r"y = x \odot \sigma(F_h f_{\mathrm{rows}} + b_h) \odot \sigma(F_w f_{\mathrm{columns}} + b_w)",
            r"f = \mathrm{hardswish}\left(\mathrm{BN}(F_1 [\mathrm{mean}_{\mathrm{rows}} \, x; \, "
            r"\mathrm{mean}_{\mathrm{columns}} \, x] + b_1)\right)",
        ),
        "The means are those of each row and of each column.",
    ),
    "triplet": Typeset(
        "y = x * (g_yx + g_cy + g_cx) / 3, g = s(BN(conv_k([max; mean over the third])))",
        (
            r"y = x \odot \frac{g_{yx} + g_{cy} + g_{cx}}{3}",
            r"g = \sigma\left(\mathrm{BN}(\mathrm{conv}_k([\max; \, \mathrm{mean}]))\right)",
        ),
        "Maximum and mean run over the axis that a gate does not have.",
    ),
    "simam": Typeset(
        "y = x * s(d / (4 (v + lambda)) + 1 / 2), d = (x - mean(x))^2, v = sum(d) / (H W - 1)",
        (
            r"y = x \odot \sigma\left(\frac{d}{4 (v + \lambda)} + \frac{1}{2}\right)",
            r"d = (x - \bar{x})^2, \qquad v = \frac{\sum d}{H W - 1}",
        ),
    ),
    "sk": Typeset(
        "y = sum_i a_i * u_i, u_i = relu(BN(conv3_i(x))) dilated by i,\n"
        "a = softmax_i(A_i relu(BN(W mean(sum_i u_i))))",
        (
            r"y = \sum_i a_i \odot u_i, \qquad u_i = \mathrm{ReLU}(\mathrm{BN}(\mathrm{conv}_{3,i}(x)))",
            r"a = \mathrm{softmax}_i\left(A_i \, \mathrm{ReLU}(\mathrm{BN}(W \, \mathrm{mean}(\sum_i u_i)))\right)",
        ),
        "Branch $i$ is dilated by $i$.",
    ),
    "split": Typeset(
        "y = sum_i a_i * u_i, [u_1 .. u_R] = relu(BN(conv_k(x))), R = radix,\n"
        "a = softmax_i(W2 relu(BN(W1 mean(sum_i u_i) + b1)) + b2), sigmoid if R is 1",
        (
            r"y = \sum_i a_i \odot u_i, \qquad [u_1, \ldots, u_R] = \mathrm{ReLU}(\mathrm{BN}(\mathrm{conv}_k(x)))",
            r"a = \mathrm{softmax}_i\left(W_2 \, \mathrm{ReLU}(\mathrm{BN}(W_1 \, "
            r"\mathrm{mean}(\sum_i u_i) + b_1)) + b_2\right)",
        ),
        "$R$ is `radix`; with $R = 1$ the softmax is a sigmoid.",
    ),
    "nonlocal": Typeset(
        "y_i = x_i + BN(Wz sum_j softmax_j((Wq x_i) . (Wk x_j)) Wv x_j), gamma of BN 0",
        (
            r"y_i = x_i + \mathrm{BN}\left(W_z \sum_j \mathrm{softmax}_j((W_q x_i) \cdot (W_k x_j)) "
            r"\, W_v x_j\right)",
        ),
        r"The scale $\gamma$ of BN is 0 at first.",
    ),
    "danet": Typeset(
        "y = x + alpha P + beta Q; P_i = sum_j softmax_j((Wq x_i) . (Wk x_j)) Wv x_j over places; "
        "Q = softmax(X X^T) X over channels; alpha = beta = 0 at first",
        (
            r"y = x + \alpha P + \beta Q",
            r"P_i = \sum_j \mathrm{softmax}_j((W_q x_i) \cdot (W_k x_j)) \, W_v x_j",
            r"Q = \mathrm{softmax}(X X^T) \, X",
        ),
        r"$P$ runs over places, $Q$ over channels; $\alpha = \beta = 0$ at first.",
    ),
    "crisscross": Typeset(
        "y_i = x_i + gamma sum_j softmax_j((Wq x_i) . (Wk x_j)) Wv x_j over the row and the column of "
        "i, itself once; R times; gamma = 0 at first",
        (r"y_i = x_i + \gamma \sum_j \mathrm{softmax}_j((W_q x_i) \cdot (W_k x_j)) \, W_v x_j",),
        r"$j$ runs over the row and the column of $i$, itself once; all of it $R$ times; $\gamma = 0$ at first.",
    ),
    "a2": Typeset(
        "y = x + Wz (G softmax_k(Wd x)), G = (Wf x) softmax_n(Wg x)^T: softmax over the n positions to "
        "gather, over the k descriptors to distribute",
        (
            r"y = x + W_z \left(G \, \mathrm{softmax}_k(W_d x)\right)",
            r"G = (W_f x) \, \mathrm{softmax}_n(W_g x)^T",
        ),
        "The softmax runs over the $n$ positions to gather, over the $k$ descriptors to distribute.",
    ),
    "botnet": Typeset(
        "y_i = sum_j softmax_j((q_i . k_j + q_i . (r[row j - row i] + s[column j - column i])) / "
        "sqrt(d)) v_j per head, q, k, v = W x",
        (
            r"y_i = \sum_j \mathrm{softmax}_j\left(\frac{q_i \cdot k_j + q_i \cdot "
            r"(r_{\mathrm{row}\, j - \mathrm{row}\, i} + s_{\mathrm{column}\, j - \mathrm{column}\, i})}"
            r"{\sqrt{d}}\right) v_j",
        ),
        "Per head; $q, k, v = W x$.",
    ),
}

GRADIENT = r"\frac{\partial s}{\partial A_c(p)}"
METHODS = {
    "rollout": Typeset(
        "",
        (r"R = \prod_l \left(\frac{1}{2} I + \frac{1}{2} \bar{A}_l\right)",),
        r"$\bar{A}_l$ is the mean of the heads of layer $l$; `residual` is the first $\frac{1}{2}$. The map is a row of $R$.",
    ),
    "relevance": Typeset(
        "",
        (
            r"\bar{A}_l = \mathrm{mean}_h \left(\frac{\partial s}{\partial A_l} \odot A_l\right)^+",
            r"R \leftarrow R + \bar{A}_l R, \qquad R = I \text{ at first}",
        ),
        "$s$ is the score of the class, $h$ the heads. The map is a row of $R - I$.",
    ),
    "gradient_attention": Typeset(
        "",
        (r"\bar{A} = \mathrm{mean}_h \left(\frac{\partial s}{\partial A} \odot A\right)^+",),
        "$s$ is the score of the class, $A$ the attention of a layer, $h$ its heads.",
    ),
    "gradcam": Typeset(
        "",
        (
            r"M(p) = \left(\sum_c w_c A_c(p)\right)^+",
            rf"w_c = \mathrm{{mean}}_p \, {GRADIENT}",
        ),
        "$A_c(p)$ is channel $c$ of the layer at place $p$, $s$ the score of the class.",
    ),
    "hirescam": Typeset(
        "",
        (rf"M(p) = \left(\sum_c {GRADIENT} \, A_c(p)\right)^+",),
        "$A_c(p)$ is channel $c$ of the layer at place $p$, $s$ the score of the class.",
    ),
    "layercam": Typeset(
        "",
        (rf"M(p) = \left(\sum_c \left({GRADIENT}\right)^+ A_c(p)\right)^+",),
        "$A_c(p)$ is channel $c$ of the layer at place $p$, $s$ the score of the class.",
    ),
    "input_x_gradient": Typeset(
        "", (r"M = x \odot \frac{\partial s}{\partial x}",), "The color channels are summed."
    ),
    "integrated_gradients": Typeset(
        "",
        (r"M = (x - x_0) \odot \int_0^1 \frac{\partial s(x_0 + t (x - x_0))}{\partial x} \, dt",),
        "$x_0$ is the baseline; the integral is a mean over steps, and the color channels are summed.",
    ),
}


def block_equation(name: str, plain: str) -> str:
    """Return the equation of a block in Markdown.

    Raises:
        ValueError: If the plain text is another one than that which was typeset.
    """
    equation = BLOCKS.get(name)
    if equation is None or equation.plain != plain:
        raise ValueError(
            f"docs/equations.py must have the equation of {name} as BlockInfo has it: {plain!r}"
        )
    return in_markdown(equation)


def method_equation(name: str) -> str:
    """Return the equation of a method in Markdown, or nothing."""
    return in_markdown(METHODS[name]) if name in METHODS else ""


def in_markdown(equation: Typeset) -> str:
    """Return lines as displayed equations, and the meaning of the symbols."""
    lines = [f"$$\n{line}\n$$" for line in equation.lines]
    where = (
        equation.where[:1].upper() + equation.where[1:]
        if equation.where[:1] != "$"
        else equation.where
    )
    return "\n\n".join([*lines, where]).strip()
