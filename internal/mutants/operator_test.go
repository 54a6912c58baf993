package mutants

// operatorMutants are defects in what operators and callers of services use: coordctl and the targets of
// gRPC, which are modules of their own.
var operatorMutants = []mutant{
	{"coordctl takes by force without an answer", "cmd/coordctl/output.go",
		"\tif t.yes {\n", "\tif question != \"\" {\n",
		"TestNothingIsTakenByForceWithoutAnAnswer"},
	{"coordctl sends control characters of other clients to the terminal", "cmd/coordctl/output.go",
		"\tif prints(s) {\n\t\treturn s\n\t}\n\tquoted", "\tif s != \"\" {\n\t\treturn s\n\t}\n\tquoted",
		"TestNoTextOfOtherClientsConfusesATerminal"},
	{"coordctl lock succeeds when its command fails", "cmd/coordctl/hold.go",
		"case status != 0:", "case status < 0:",
		"TestTheCommandNeverOutlivesTheLock/etcd/normal_end"},
	{"coordctl needs a lease", "cmd/coordctl/flags.go",
		"OpenWithoutSpace: true,", "OpenWithoutSpace: false,",
		"TestCoordctl_DeletesOnAFullService"},
	{"coordctl ignores a request for its lock", "cmd/coordctl/hold.go",
		"if t.revokeSignal == 0 {", "if t.revokeSignal >= 0 {",
		"TestCoordctl_ARequestForTheLockEndsTheCommand/etcd/by_SIGTERM"},
	{"coordctl waits for a command that ignores a request for as long as it runs", "cmd/coordctl/hold.go",
		"if t.revokeGrace > 0 {", "if t.revokeGrace < 0 {",
		"TestCoordctl_ARequestForTheLockEndsTheCommand/etcd/by_SIGKILL_after_the_grace"},
	{"coordctl ui acts without --allow-actions", "cmd/coordctl/internal/ui/act.go",
		"case !s.o.AllowActions:", "case !s.o.AllowActions && s.key == \"\":",
		"TestActionsNeedTheirFlagTheKeyAndTheToken"},
	{"coordctl ui acts for a browser without the key", "cmd/coordctl/internal/ui/act.go",
		"case !s.mayAct(r), !same(", "case !same(",
		"TestActionsNeedTheirFlagTheKeyAndTheToken"},
	{"a target of gRPC whose watch has failed stays without addresses", "grpcresolver/grpcresolver.go",
		"case <-next.C:", "case <-(chan time.Time)(nil):",
		"TestAFailedWatchBeginsAgainWithoutBeingAsked"},
}
