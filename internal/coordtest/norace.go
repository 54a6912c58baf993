//go:build !race

package coordtest

// Race reports whether the race detector watches.
const Race = false
