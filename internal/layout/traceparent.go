package layout

import "strings"

// TracePrefix begins the name of the node beside an item that shows the trace context of its producer.
const TracePrefix = "t-"

// IsTraceParent reports whether text is a traceparent of version 00 of the W3C Trace Context.
func IsTraceParent(text string) bool {
	parts := strings.Split(text, "-")
	if len(parts) != 4 || parts[0] != "00" {
		return false
	}
	for i, n := range [...]int{2, 32, 16, 2} {
		if len(parts[i]) != n || strings.Trim(parts[i], "0123456789abcdef") != "" {
			return false
		}
	}
	return strings.Trim(parts[1], "0") != "" && strings.Trim(parts[2], "0") != ""
}

// TraceName returns the name of the node that shows the traceparent of the item with this id.
func TraceName(id, traceparent string) string { return TracePrefix + id + "-" + traceparent }

// ParseTrace is the inverse of TraceName.
func ParseTrace(name string) (id, traceparent string, ok bool) {
	id, rest, ok := CutID(name, TracePrefix)
	return id, rest, ok && IsTraceParent(rest)
}
