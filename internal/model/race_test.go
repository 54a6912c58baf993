//go:build race

package model

// race: the detector takes much memory and time, and there is one goroutine.
const race = true
