# Makes the table of scripts/peers from the clients' lines (steps.md): one row for each run of a client, one column for
# each step. What failed is said in full below it, and makes the exit status 1.

$1 == "client" { rows++; name[rows] = $2 " " $3; era[rows] = $4 }

$1 == "step" {
    if (!($2 in known)) { known[$2] = 1; columns++; step[columns] = $2 }
    said[rows, $2] = $3
    if ($3 == "ok") { if ($4 != "") notes[++noted] = name[rows] " (" era[rows] "), " $2 ": " $4 }
    else failures[++failed] = name[rows] " (" era[rows] "), " $2 ": " $4
}

END {
    line = "| client | version of MCP |"
    rule = "| --- | --- |"
    for (c = 1; c <= columns; c++) { line = line " " step[c] " |"; rule = rule " --- |" }
    print line
    print rule
    for (r = 1; r <= rows; r++) {
        line = "| " name[r] " | " era[r] " |"
        for (c = 1; c <= columns; c++) line = line " " ((r, step[c]) in said ? said[r, step[c]] : "-") " |"
        print line
    }
    if (noted) print ""
    for (n = 1; n <= noted; n++) print "- " notes[n]
    if (failed) print "\nFailed:"
    for (f = 1; f <= failed; f++) print "- " failures[f]
    exit failed || !rows
}
