//go:build race

package coordtest

// Race reports whether the race detector watches: it makes a simulated schedule take
// ten times as long.
const Race = true
