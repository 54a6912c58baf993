// Package coord: to be written.
package coord
