package mutants

// postgresMutants are defects in the backend for PostgreSQL, which is a module of its own. Those of its SQL are in
// TestGuard_DefectsAreFound.
var postgresMutants = []mutant{
	{"the zero Guard passes in a transaction of PostgreSQL", "postgres.check",
		"if len(ops) == 0 {", "if len(ops) < 0 {",
		"TestGuard_Errors"},
	{"a guard in a transaction of PostgreSQL compares no version", "postgres.check",
		"strconv.Itoa(int(op.Version))", `"-1"`,
		"TestGuard_OfABranch"},
	{"a refusal of a version is no refusal", "postgres.check",
		"return refusedGuard(ops, err, backend.ErrBadVersion)", "return nil",
		"TestGuard_OfABranch"},
	{"a bound for idle transactions of PostgreSQL that is switched off is the default", "millis",
		"return -1", "return 0",
		"TestGuard_Idle"},
}
