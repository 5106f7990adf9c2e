begin_version
3
end_version
begin_metric
0
end_metric
12
begin_variable
var0
-1
2
Atom f0()
NegatedAtom f0()
end_variable
begin_variable
var1
-1
2
Atom f1()
NegatedAtom f1()
end_variable
begin_variable
var2
-1
2
Atom f3()
NegatedAtom f3()
end_variable
begin_variable
var3
-1
2
Atom f2()
NegatedAtom f2()
end_variable
begin_variable
var4
-1
2
Atom f11()
NegatedAtom f11()
end_variable
begin_variable
var5
-1
2
Atom f5()
NegatedAtom f5()
end_variable
begin_variable
var6
-1
2
Atom f10()
NegatedAtom f10()
end_variable
begin_variable
var7
-1
2
Atom f7()
NegatedAtom f7()
end_variable
begin_variable
var8
-1
2
Atom f6()
NegatedAtom f6()
end_variable
begin_variable
var9
-1
2
Atom f8()
NegatedAtom f8()
end_variable
begin_variable
var10
-1
2
Atom f9()
NegatedAtom f9()
end_variable
begin_variable
var11
-1
2
Atom f4()
NegatedAtom f4()
end_variable
0
begin_state
0
1
0
1
0
1
1
0
0
1
1
1
end_state
begin_goal
5
1 0
3 0
9 0
10 0
11 0
end_goal
10
begin_operator
a0 
0
4
0 0 0 1
0 1 -1 0
0 3 -1 0
0 2 -1 1
1
end_operator
begin_operator
a1 
0
4
0 0 -1 0
0 1 0 1
0 3 -1 1
0 2 -1 0
1
end_operator
begin_operator
a2 
1
2 0
4
0 11 0 1
0 5 0 1
0 8 -1 0
0 7 -1 0
1
end_operator
begin_operator
a3 
1
2 0
4
0 11 -1 0
0 5 -1 0
0 8 0 1
0 7 0 1
1
end_operator
begin_operator
a4 
1
3 0
4
0 11 0 1
0 8 -1 0
0 7 -1 0
0 9 0 1
1
end_operator
begin_operator
a5 
1
3 0
4
0 11 -1 0
0 8 0 1
0 7 0 1
0 9 -1 0
1
end_operator
begin_operator
a6 
1
2 0
4
0 6 -1 0
0 11 0 1
0 8 -1 0
0 10 0 1
1
end_operator
begin_operator
a7 
1
2 0
4
0 6 0 1
0 11 -1 0
0 8 0 1
0 10 -1 0
1
end_operator
begin_operator
a8 
1
3 0
4
0 6 -1 0
0 4 0 1
0 11 0 1
0 8 -1 0
1
end_operator
begin_operator
a9 
1
3 0
4
0 6 0 1
0 4 -1 0
0 11 -1 0
0 8 0 1
1
end_operator
0
