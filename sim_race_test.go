//go:build race

package coord_test

// raceDetector: it makes a schedule take ten times as long.
const raceDetector = true
