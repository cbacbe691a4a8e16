# Draws a time line as SVG; stale-write.txt says what it reads.
#
# Text stands on fills of its own, or is of a grey that can be read on white and on
# black.  Fonts are the reader's.

function escaped(text)
{
	gsub(/&/, "\\&amp;", text)
	gsub(/</, "\\&lt;", text)
	return text
}

# what follows the first so many words of the line
function rest(words,   text)
{
	text = $0
	while (words-- > 0)
		sub(/^[^ ]+ +/, "", text)
	return text
}

function x(at) { return left + at * unit }
function y(lane) { return top + (lane - 1) * step }

BEGIN {
	left = 96; top = 30; unit = 8.2; step = 52; height = 32; lanes = 0
	fill["blue"] = "#ddf4ff"; ink["blue"] = "#0a3069"
	fill["green"] = "#aceebb"; ink["green"] = "#044f1e"
	fill["red"] = "#ffcecb"; ink["red"] = "#82071e"
	fill["grey"] = "#eaeef2"; ink["grey"] = "#24292f"
	grey = "#747c86"
}

/^ *(#|$)/ { next }

$1 == "title" { title = rest(1) }

$1 == "lane" {
	if ($2 > lanes)
		lanes = $2
	labels = labels sprintf("<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"%s\">%s</text>\n", left - 12, y($2) + height / 2 + 5, grey, escaped(rest(2)))
}

$1 == "bar" {
	bars = bars sprintf("<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" rx=\"5\" fill=\"%s\" stroke=\"%s\"%s/>\n", \
		x($3), y($2), ($4 - $3) * unit, height, fill[$5], grey, $5 == "grey" ? " stroke-dasharray=\"5 4\"" : "")
	bars = bars sprintf("<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" fill=\"%s\">%s</text>\n", \
		x(($3 + $4) / 2), y($2) + height / 2 + 5, ink[$5], escaped(rest(5)))
}

$1 == "line" { moments[++count] = $2; names[count] = rest(2) }

END {
	bottom = y(lanes) + height
	printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" font-family=\"sans-serif\" font-size=\"13\">\n", \
		x(100) + 10, bottom + 34, x(100) + 10, bottom + 34
	printf "<title>%s</title>\n%s%s", escaped(title), labels, bars
	for (i = 1; i <= count; i++)
	{
		printf "<line x1=\"%.1f\" y1=\"20\" x2=\"%.1f\" y2=\"%d\" stroke=\"%s\" stroke-dasharray=\"3 3\"/>\n", x(moments[i]), x(moments[i]), bottom + 6, grey
		printf "<text x=\"%.1f\" y=\"14\" text-anchor=\"middle\" fill=\"%s\">%s</text>\n", x(moments[i]), grey, escaped(names[i])
	}
	printf "<path d=\"M%d %d H%.1f m-7 -4 l7 4 l-7 4\" fill=\"none\" stroke=\"%s\"/>\n", left, bottom + 18, x(100), grey
	printf "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"%s\">time</text>\n</svg>\n", left - 12, bottom + 22, grey
}
